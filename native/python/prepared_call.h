// A call for which everything is decided but where its buffers lie (MPI 4: a persistent collective), and its
// executions.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/flight.h"
#include "python/member.h"

namespace hocket {

// Memory without a Python object of its own.
struct RawBuffer {
    u64 address, bytes;
    std::string dtype;
    u32 type = type_code(dtype);  // kTypes where the name is not one of kTypeNames
};

// What a caller gives as x or as out. The object is borrowed.
struct Argument {
    PyObject* object = Py_None;
    char* data = nullptr;
    u64 bytes = 0;
    bool shared = false;  // it lies in memory that ranks share
    bool listed = false;  // it is a list of arrays and RawBuffers, one behind the other, wherever they lie
};

// What a call expects as x or as out: an array of this type and shape, a RawBuffer of as many bytes, the address of as
// many, or a list of arrays and RawBuffers. `dtype` is None where NumPy does not know the type.
struct Operand {
    nanobind::object dtype;
    std::vector<Py_ssize_t> shape;
    u64 bytes;
    bool written;
};

// Which memory is a buffer of a call: none, that of x or of out, or scratch as long as x that each execution allocates.
enum class Source : u32 { kNothing, kX, kOut, kScratch };

// What out is where the caller gives none: an error, the memory of x, or an array that each execution allocates.
enum class Omitted : u32 { kRefused, kX, kFresh };

// Which memory is which buffer of a plan. `initial` is copied to byte `place` of the first of its buffers. Where
// `taken` is given, `result` is copied from that byte of the input on.
struct Binding {
    Source input, output, initial, result;
    u64 place;
    std::optional<u64> taken;
};

// The plans of the variants in kZeroCopy, null for none, and the buffers that they work on. They are offered where all
// buffers are `shared`, and where some are not, `private_`.
struct Alternatives {
    std::array<Plan*, std::size(kZeroCopy)> plans;
    Source input, output;
    bool shared, private_;
};

class PreparedCall;

// The arm of a call: the prepared call that is made, and which arm of `arms` that is; null where it is not tuned.
// `timed`: what it takes is noted, from `begun` on, in ticks; 0: from when it is run, which for one in the background
// may be much later.
struct Taken {
    nanobind::object prepared;
    KeyArms* arms;
    u32 arm;
    bool timed = false;
    u64 begun = 0;

    PreparedCall& call() const { return *nanobind::inst_ptr<PreparedCall>(prepared); }
};

// What does not depend on where buffers lie. Made by hocket/runtime/execution.py, which has checked it.
class PreparedCall {
  public:
    struct Terms {
        std::optional<u64> n;  // elements a unit; none where this rank has no buffer
        u32 type, op;
        u64 tile;
        std::optional<std::string> element;
        std::optional<Units> units;
        double timeout;
        std::optional<double> factor;  // of a sum whose operator is that of averages; none: an average
    };
    struct Operands {
        std::optional<Operand> x, out;     // none for what is not looked at
        std::optional<long long> between;  // bytes from x to out; none where they lie apart
        Omitted omitted;
    };

    // `only_shared`: buffers that are not all shared have no path. `counted`: None, or the plan of an exchange where
    // other ranks give counts (call.h). Throws std::invalid_argument for what would lead outside of the buffers.
    PreparedCall(nanobind::object member, nanobind::object plan, Terms terms, Operands operands, const Binding& binding,
                 std::optional<Alternatives> alternatives, bool only_shared, nanobind::object counted);
    PreparedCall& operator=(PreparedCall&&) = delete;

    // Executes the call on what it is given, and returns the result. Null with a Python error where it fails.
    static PyObject* call(nanobind::handle self, PyObject* x, PyObject* out);
    // The same, of arguments that are known to fit.
    PyObject* execute(nanobind::handle self, const Argument& x, const Argument& out);
    // The same two in the background.
    static Handle start(nanobind::handle self, nanobind::handle x, nanobind::handle out, nanobind::handle keep);
    Handle launch(nanobind::handle self, const Argument& x, const Argument& out,
                  nanobind::handle keep = nanobind::none());

    // From now on each call takes one of several arms, of which this is the first. `self._arm(number, background)` is
    // another, which `self` keeps.
    void tune(std::shared_ptr<KeyArms> arms) { arms_ = std::move(arms); }
    // Lets go of the communicator, once that has ended.
    void release() {
        held_.reset();
        of_arms_ = {};
    }
    // How the latest execution that has ended went.
    Variant variant() const { return variant_; }

  private:
    friend class BoundCall;

    // `make` holds what an execution needs; where that cannot be had, this rank refuses the call.
    template <class Make> static void prepare(nanobind::handle self, bool background, Make make);
    // The arm that the next call takes.
    Taken take_arm(nanobind::handle self, bool background) {
        return arms_ ? take_tuned(self, background) : Taken{nanobind::borrow(self), nullptr, 0};
    }
    Taken take_tuned(nanobind::handle self, bool background);
    static void take(nanobind::handle self, PyObject* x, PyObject* out, bool background, Argument (&found)[2]);
    bool fit(PyObject* x, PyObject* out, bool checked, Argument (&found)[2]) const;
    bool fits(const Operand& expected, PyObject* given, bool checked, Argument& found) const;
    bool fit_list(const Operand& expected, PyObject* list, bool checked, std::vector<Argument>& parts) const;
    u64 end(Place which, u64 unit, u64 blocks) const;
    u64 length(Source source) const;
    void check(const PlanHeader& header, Source input, Source output) const;

    nanobind::object held_;  // the member and the plans; null once the communicator has ended
    Member* const member_;
    Plan* const plan_;
    const Terms terms_;
    const Scale scale_;
    const Operands operands_;
    const Binding binding_;
    const std::optional<Alternatives> alternatives_;
    const bool only_shared_;
    Call call_{};         // but for addresses
    bool brief_ = false;  // BoundCall
    Variant variant_ = kBuffered;
    std::shared_ptr<KeyArms> arms_;                // null where it is not tuned
    std::array<nanobind::handle, kArms> of_arms_;  // the calls of all but the first, once they were made
};

// A prepared call on its buffers: what it holds until it has ended. Made and destroyed with the GIL. The prepared call
// and the arguments stay as long as this.
class BoundCall {
  public:
    // Throws nanobind::python_error and std::bad_alloc.
    BoundCall(PreparedCall& prepared, Argument x, Argument out);
    // It is the next call, and of an arm, of which what it takes is noted.
    void take(const Taken& taken, Member& member) {
        ++member.calls;
        arms_ = taken.arms;
        arm_ = taken.arm;
        if (arms_ == nullptr) return;
        arms_->enter(arm_);
        if (!taken.timed) return;
        watch_.begun = taken.begun;
        call_.watch = &watch_;
    }
    BoundCall& operator=(BoundCall&&) = delete;
    // Holds for ever what others may still be writing to. What it took is noted here, with the GIL.
    ~BoundCall() {
        if (exposed_) {
            for (PyObject* array : offered_) Py_XINCREF(array);
            (void)kept_[2].release();
            (void)scratch_.release();
        }
        if (watch_.took != 0) arms_->took(arm_, watch_.took);
    }

    // Holds the arguments of a call in the background, and what keeps their memory where they are no arrays.
    void keep(nanobind::handle x, nanobind::handle out, nanobind::handle memory) {
        kept_ = {nanobind::borrow(x), nanobind::borrow(out), nanobind::borrow(memory)};
    }

    Outcome run();
    // Communicator::post, and what is left to do after it: all, if it returned false.
    bool post();
    Outcome go_on();
    // Whether it is so short that giving the GIL away would take as long.
    bool brief() const { return prepared_.brief_; }
    nanobind::handle result() const { return result_; }
    nanobind::object member() const { return held_[0]; }

  private:
    // What takes the place of lists, and what is copied from them before the call and to them after it.
    struct Copy {
        char* to;
        const char* from;
        u64 bytes;
    };
    struct Lists {
        nanobind::list kept;
        std::vector<Copy> before, after;
    };

    void take_lists(Argument& x, Argument& out);
    void join(Argument& list, const std::vector<Argument>& parts, bool before);
    void copy_in() const;
    void ended(const Outcome& outcome);

    PreparedCall& prepared_;
    const nanobind::object held_;
    nanobind::object fresh_;
    std::unique_ptr<Lists> lists_;  // null where there are none
    std::unique_ptr<char[]> scratch_;
    Call call_;
    Offer offer_;
    bool posted_ = false;
    std::array<PyObject*, 2> offered_{};
    std::array<nanobind::object, 3> kept_{};
    bool exposed_ = false;  // others have been told where they lie, or a network
    KeyArms* arms_ = nullptr;
    u32 arm_ = 0;
    Watch watch_;
    PyObject* result_;
};

// Calls what may be Python, and never throws what would pass through a thread that the interpreter has given up.
inline PyObject* call_python(PyObject* callee, PyObject* const* arguments, Py_ssize_t count,
                             PyObject* keywords = nullptr) {
    return or_stay([&] { return PyObject_Vectorcall(callee, arguments, size_t(count), keywords); });
}

// For slots of CPython: what `body` returns, null with a Python error for what it throws.
template <class Body> PyObject* or_error(Body body) noexcept {
    try {
        return body();
    } catch (nanobind::python_error& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

}  // namespace hocket
