#include "mpi/group.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "mpi/report.h"
#include "transport/cma.h"
#include "transport/mapping.h"

namespace hocket::mpi {
namespace {

constexpr u32 kWordBits = 64, kCoreWords = 16;  // of a set of cores

// For good, as in library.h.
Arena& no_arena = *new Arena(-1);
std::mutex& registry_lock = *new std::mutex;
std::set<Group*>& registry = *new std::set<Group*>;  // of all that there are
std::atomic<u32> served{0};
std::atomic<u64> gone{0};  // communicators

int no_copy(Handle, int, void*, void*, void*, int* flag) {
    *flag = 0;
    return 0;
}

// What tells machines apart, and on one the processes that cannot name each other.
u64 machine() {
    static const u64 found = [] {
        std::string boot;
        std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
        u64 hash = 0;
        for (const char each : boot) hash = mix(hash ^ u64(each));
        struct stat space{};
        return ::stat("/proc/self/ns/pid", &space) == 0 ? mix(hash ^ space.st_ino) : hash;
    }();
    return found;
}

u32 processors() {
    static const u32 found = u32(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
    return found;
}

// A descriptor that reads as ended once a process has, for all communicators. -1 where there can be none.
int lifeline(pid_t process) {
    static std::mutex lock;
    static auto& known = *new std::map<pid_t, int>;  // for good, as in library.h
    const std::lock_guard held(lock);
    const auto at = known.try_emplace(process, -1).first;
    pollfd ended{at->second, POLLIN, 0};
    // That of an earlier process of the same number stays open for whoever has it.
    if (at->second < 0 || ::poll(&ended, 1, 0) > 0) at->second = int(::syscall(SYS_pidfd_open, process, 0));
    return at->second;
}

// Memory that so many ranks can share, marked so that they know it. -1 where there is none.
int shared_file(u32 ranks, u64 stamp) {
    const int made = ::memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) return -1;
    if (::fchmod(made, 0600) == 0 && ::ftruncate(made, off_t(kFileBytes)) == 0 &&
        ::fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
        reserve_control(made, ranks) == 0 && ::pwrite(made, &stamp, sizeof stamp, off_t(kStamp)) == sizeof stamp)
        return made;
    ::close(made);
    return -1;
}

// That file of another process. -1 where it cannot be opened, or is another one.
int open_shared(pid_t process, int descriptor, u64 stamp) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
    const int found = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    u64 read = 0;
    if (found >= 0 && ::pread(found, &read, sizeof read, off_t(kStamp)) == sizeof read && read == stamp) return found;
    if (found >= 0) ::close(found);
    return -1;
}

u64 fresh_stamp() {
    static u64 made = 0;
    return mix(u64(::getpid()) ^ Clock().ticks() ^ mix(__atomic_add_fetch(&made, 1, __ATOMIC_RELAXED)));
}

// Ranks of this job on this machine, as its launcher says; 1 where it does not.
u32 local_ranks() {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"})
        if (const char* const text = std::getenv(name)) return u32(std::max(1, std::atoi(text)));
    return 1;
}

// Bytes that caches hold for so many ranks, as far as the system says.
u64 cache_bytes(u32 ranks) {
    constexpr u64 kMostOfACore = 32 << 20;
    if (const char* const given = std::getenv("HOCKET_CACHE_BYTES")) return std::strtoull(given, nullptr, 10);
    const u64 second = u64(std::max(0L, ::sysconf(_SC_LEVEL2_CACHE_SIZE)));
    const u64 third = u64(std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)));
    return second * std::min(ranks, processors()) + std::min(third, processors() * kMostOfACore);
}

// A plan of another root: its ranks are those that lie as far behind that, and so are the blocks of the root's buffer.
void rename(std::vector<u32>& words, u32 root, Program program) {
    PlanView view;
    if (root == 0 || view_plan(words.data(), words.size(), view) != nullptr) return;
    PlanHeader& h = const_cast<PlanHeader&>(*view.header);
    const auto behind = [&](u32& rank) { rank = (rank + root) % h.ranks; };
    const bool is_root = h.rank == 0;
    for (u32 o = 0; o < h.operands; ++o) {
        OperandRecord& operand = const_cast<OperandRecord&>(view.operands[o]);
        const bool theirs = operand.place > kHere;
        const bool of_root = theirs ? view.connections[operand.end].peer == 0 : is_root;
        const bool of_blocks =
            (program == Program::kGather && (operand.place == kOutput || operand.place == kTheirOutput)) ||
            (program == Program::kScatter && (operand.place == kInput || operand.place == kTheirInput));
        if (of_root && of_blocks) behind(operand.unit);
    }
    for (u32 c = 0; c < h.connections; ++c) behind(const_cast<ConnectionRecord&>(view.connections[c]).peer);
    for (u32 m = 0; m < h.multicasts; ++m) behind(const_cast<MulticastRecord&>(view.multicasts[m]).source);
    behind(h.rank);
}

bool cuts(Program p) { return p == Program::kReduceScatter || p == Program::kScatter || p == Program::kAllToAll; }
bool combines(Program p) { return p <= Program::kReduce || p == Program::kReduceScatter; }
bool joins(Program p) { return p == Program::kAllGather || p == Program::kGather || p == Program::kAllToAll; }

// Of two zeros they give the first, or the second, so every path must meet values in the same order.
bool is_ordered(u32 op) {
    const Operator o{op};
    return o == Operator::min || o == Operator::max || o == Operator::minloc || o == Operator::maxloc;
}

}  // namespace

// What a rank says when the ranks of a communicator meet.
struct Group::Hello {
    u64 version, machine, stamp, witness, cores[kCoreWords];
    int process, descriptor;
    u32 user, local, processors;
};

Group* Group::of(const Library& mpi, const Options& options, Handle communicator) {
    static const int key = [&] {
        int made = 0;
        mpi.Comm_create_keyval(reinterpret_cast<void*>(no_copy), reinterpret_cast<void*>(&Group::left), &made, nullptr);
        return made;
    }();
    // That of this thread's last call; not once any communicator has gone, whose handle may mean another.
    thread_local struct {
        Handle communicator;
        u64 gone;
        Group* group;
    } last{};
    if (last.communicator == communicator && last.gone == gone && last.group != nullptr) return last.group;
    const u64 before = gone;
    void* found = nullptr;
    int is_set = 0;
    if (mpi.Comm_get_attr(communicator, key, &found, &is_set) != 0) return nullptr;
    auto* group = static_cast<Group*>(found);
    if (is_set == 0) {
        group = new Group(mpi, options, communicator);
        if (mpi.Comm_set_attr(communicator, key, group) != 0) {
            delete group;
            return nullptr;
        }
    }
    last = {communicator, before, group};
    return group;
}

Group::Group(const Library& mpi, const Options& options, Handle communicator)
    : mpi_(mpi),
      options_(options),
      handle_(communicator) {
    int rank = 0, size = 0, is_inter = 0;
    mpi.Comm_test_inter(communicator, &is_inter);
    mpi.Comm_rank(communicator, &rank);
    mpi.Comm_size(communicator, &size);
    rank_ = u32(rank);
    size_ = u32(size);
    if (is_inter != 0) closed_ = "it joins two groups";
    else if (size_ == 1) closed_ = "it has one rank";
    else if (!is_of_this_job()) closed_ = "it is of several jobs";
    char name[1024] = "";  // as long as MPI_MAX_OBJECT_NAME is anywhere
    int length = 0;
    mpi.Comm_get_name(communicator, name, &length);
    name_ = *name != 0 ? name : "(without a name)";
    const std::lock_guard held(registry_lock);
    registry.insert(this);
}

// Processes of other jobs, as those that MPI has spawned, may be without this library.
bool Group::is_of_this_job() const {
    Handle world = 0, own = 0;
    std::vector<int> ranks(size_), there(size_, -1);
    std::iota(ranks.begin(), ranks.end(), 0);
    mpi_.Comm_group(mpi_.abi.world, &world);
    mpi_.Comm_group(handle_, &own);
    mpi_.Group_translate_ranks(own, int(size_), ranks.data(), world, there.data());
    mpi_.Group_free(&own);
    mpi_.Group_free(&world);
    return *std::min_element(there.begin(), there.end()) >= 0;  // MPI_UNDEFINED is not
}

Group::~Group() {
    finish();
    const std::lock_guard held(registry_lock);
    registry.erase(this);
}

// MPI's callback for an attribute that goes, with its communicator.
int Group::left(Handle, int, void* its, void*) {
    auto* const group = static_cast<Group*>(its);
    if (group->silent_ != 0 && !group->finished_) group->mpi_.Comm_free(&group->silent_);
    ++gone;
    delete group;
    return 0;
}

void Group::finish_all() {
    const std::lock_guard held(registry_lock);
    for (Group* const group : registry) group->finish();
}

// Notes what it has come to, on one of its ranks, and leaves the others.
void Group::finish() {
    if (finished_) return;
    finished_ = true;
    for (u32 c = 0; c < kCollectives && rank_ == 0 && options_.report; ++c)
        for (u32 r = 0; r < kReasons; ++r) {
            if (tallies[c][r].calls == 0) continue;
            std::string why = kReasonNames[r];
            if (Reason{r} == Reason::kCommunicator && closed_ != nullptr) why = why + ": " + closed_;
            note(name_, size_, kCollectiveNames[c], why, tallies[c][r]);
        }
    if (communicator_) {
        communicator_->control().leave();
        --served;
    }
    loaded_.clear();
    communicator_.reset();
    memory_.reset();
    if (closed_ == nullptr) closed_ = "it was left";
}

Reason Group::open(bool at_once) {
    if (communicator_ == nullptr && closed_ == nullptr) {
        if (!at_once && ++asked_ <= kFirstCalls) return Reason::kFirst;
        meet();
    }
    return closed_ == nullptr ? Reason::kTaken : Reason::kCommunicator;
}

// All ranks see the same hellos, and the same least of what each could do: so all are served, or none.
void Group::meet() {
    Hello mine{};
    file_ = PlanFile::find(size_);
    mine.version = file_ == nullptr ? 0 : mix(mix(file_->hash() ^ sizeof(RankBlock)) ^ options_.hash());
    mine.machine = machine();
    mine.process = ::getpid();
    mine.user = ::geteuid();
    mine.local = local_ranks();
    mine.processors = processors();
    mine.witness = witness_place();
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        for (u32 core = 0; core < kWordBits * kCoreWords && core < CPU_SETSIZE; ++core)
            if (CPU_ISSET(core, &allowed)) mine.cores[core / kWordBits] |= u64(1) << core % kWordBits;
    mine.descriptor = -1;
    if (rank_ == 0 && file_ != nullptr) {
        mine.stamp = fresh_stamp();
        mine.descriptor = shared_file(size_, mine.stamp);
    }
    std::vector<Hello> all(size_);
    const int bytes = int(sizeof mine);
    const bool said = mpi_.Allgather.plain(&mine, bytes, mpi_.byte, all.data(), bytes, mpi_.byte, handle_) == 0;
    if (!said) {
        closed_ = "its ranks could not meet";
        return;
    }
    for (const Hello& each : all) {
        if (each.machine != all[0].machine) closed_ = "it spans machines, or containers";
        else if (each.user != all[0].user) closed_ = "it is of several users";
        else if (each.version == 0) closed_ = "there are no plans for so many ranks: see hocket mpi --prepare";
        else if (each.version != all[0].version) closed_ = "its ranks have different plans or options";
    }
    if (closed_ == nullptr && all[0].descriptor < 0) closed_ = "there is no memory to share";
    if (closed_ != nullptr) {
        if (mine.descriptor >= 0) ::close(mine.descriptor);
        return;
    }
    bool attaches = options_.attaches;
    int can[2] = {join(all, attaches), attaches}, could[2] = {};
    mpi_.Allreduce.plain(can, could, 2, mpi_.integer, mpi_.min, handle_);
    if (could[0] == 0) {
        memory_.reset();
        closed_ = "a rank cannot share memory with the others, or serves too many communicators";
        return;
    }
    attaches_ = could[1] != 0;
    mpi_.Comm_split(handle_, 0, int(rank_), &silent_);
    begin(all);
}

// Maps what rank 0 made, and sees to the rest that may be missing. `attaches`: whether to copy from and to the memory
// of all others, and then whether this rank can.
bool Group::join(const std::vector<Hello>& all, bool& attaches) {
    const Hello& host = all[0];
    const int file = rank_ == 0 ? host.descriptor : open_shared(host.process, host.descriptor, host.stamp);
    if (file < 0) return false;
    if (served >= kMostServed) {
        ::close(file);
        return false;
    }
    std::vector<pid_t> processes;
    for (const Hello& each : all) processes.push_back(each.process);
    try {
        memory_ = std::make_unique<SharedMemory>(file, size_, std::vector<int>(size_, -1), no_arena, processes);
    } catch (const std::exception&) {
        return false;
    }
    for (u32 r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        if (lifeline(all[r].process) < 0) return false;
        attaches = attaches && may_access(all[r].process, all[r].witness);
    }
    return true;
}

// All ranks have joined.
void Group::begin(const std::vector<Hello>& all) {
    u64 cores = 0;
    for (u32 w = 0; w < kCoreWords; ++w) {
        u64 word = 0;
        for (const Hello& each : all) word |= each.cores[w];
        cores += u64(std::popcount(word));
    }
    u32 local = size_, fewest = processors();
    for (const Hello& each : all) {
        local = std::max(local, each.local);
        fewest = std::min(fewest, each.processors);
    }
    crowded_ = size_ > cores || local > fewest;
    std::vector<int> lifelines;
    for (u32 r = 0; r < size_; ++r) lifelines.push_back(r == rank_ ? -1 : lifeline(all[r].process));
    Settings settings{{.patience = file_->patience(crowded_), .timeout = std::numeric_limits<double>::infinity()}};
    settings.cache_bytes = cache_bytes(size_);
    if (Clock::trusted()) settings.is_far = is_far;
    if (attaches_) settings.cma_use = options_.always_attaches ? CmaUse::kAlways : CmaUse::kWhereFaster;
    settings.progress = {get_on, this};
    communicator_ = std::make_unique<Communicator>(rank_, size_, *memory_, std::move(lifelines), settings);
    ++served;
    loaded_.resize(u64(size_) * file_->plans());
}

// An MPI library gets on with its messages only when it is called: while it looks in vain for one.
void Group::get_on(void* group) {
    const Group& self = *static_cast<const Group*>(group);
    const Library& mpi = self.mpi_;
    int flag = 0;
    mpi.Iprobe(mpi.abi.any_source, mpi.abi.any_tag, self.silent_ != 0 ? self.silent_ : self.handle_, &flag,
               mpi.abi.ignored_status);
}

const Rule* Group::rule(const Request& call) const {
    const u64 unit = call.n * type_bytes(call.type);
    const u64 size = call.units != nullptr ? call.size : unit * (cuts(call.program) || joins(call.program) ? size_ : 1);
    return file_->rule(call.program, options_.rank_order && combines(call.program), crowded_, call.units != nullptr,
                       size);
}

Group::Loaded& Group::load(u32 plan, u32 root, Program program) {
    std::unique_ptr<Loaded>& found = loaded_[u64(root) * file_->plans() + plan];
    if (found == nullptr) {
        Part part = file_->part(plan, (rank_ + size_ - root) % size_);
        auto made = std::make_unique<Loaded>();
        std::copy(std::begin(part.bindings), std::end(part.bindings), made->bindings);
        const auto ready = [&](std::vector<u32>& words) {
            rename(words, root, program);
            const u64 digest = mix(file_->digest(plan) + root);
            return std::make_unique<Plan>(*communicator_, std::move(words), digest, kProgramNames[u32(program)]);
        };
        made->plan = ready(part.words);
        if (!part.apart.empty()) made->apart = ready(part.apart);
        found = std::move(made);  // damaged plans throw before
    }
    return *found;
}

char* Group::room(Room which, u64 bytes) {
    auto& [place, length] = rooms_[u32(which)];
    if (bytes > length) {
        place.reset(static_cast<char*>(std::aligned_alloc(kPage, whole_pages(bytes))));
        length = place == nullptr ? 0 : bytes;
    }
    if (place == nullptr) throw std::bad_alloc();
    return place.get();
}

Outcome Group::run(const Rule& rule, const Request& request) {
    const Program program = request.program;
    const u64 item = type_bytes(request.type), unit = request.n * item;
    const auto length = [&](Place place, bool all) {
        return request.units != nullptr ? request.units->bounds[place].back() : all ? unit * size_ : unit;
    };
    const u64 x_bytes = length(kInput, cuts(program)), out_bytes = length(kOutput, joins(program));
    const u64 own = cuts(program) == joins(program) ? 0 : request.units != nullptr ? request.own : unit * rank_;
    Loaded& main = load(rule.plan, request.root, program);
    const Binding& binding = main.bindings[request.in_place];
    const bool scratch = binding.input == Source::kScratch;
    char* const memory[] = {nullptr, request.x, request.out, scratch ? room(Room::kInput, x_bytes) : nullptr};
    const auto at = [&](Source source) { return memory[u32(source)]; };
    Call call{};
    call.input = at(binding.input);
    call.output = at(binding.output);
    if (binding.initial != Source::kNothing) {
        call.initial = at(binding.initial);
        call.initial_to = (call.input != nullptr ? call.input : call.output) + (binding.to_own ? own : 0);
        call.initial_bytes = x_bytes;
    }
    if (binding.taken) call.finish = {at(binding.result), out_bytes, call.input + own};
    call.n = request.n;
    call.tile = rule.tile;
    call.type = request.type;
    call.op = request.op;
    call.size_known = true;
    call.units = request.units;
    Offer offer;
    if (offers(rule, request, offer, at)) call.offer = &offer;
    // What is thrown when others have been told of the call ends the process.
    return
        [&]() noexcept { return communicator_->run(binding.apart && main.apart ? *main.apart : *main.plan, call); }();
}

// Plans for the buffers as they lie, where other ranks can access them.
template <class At> bool Group::offers(const Rule& rule, const Request& request, Offer& offer, At at) {
    if (!attaches_ || is_ordered(request.op)) return false;
    if (request.in_place && cuts(request.program) && request.program != Program::kScatter) return false;
    const Binding* first = nullptr;
    for (const Variant variant : kZeroCopy) {
        const u32 plan = rule.instead[variant - kZeroCopy[0]];
        if (plan == 0) continue;
        Loaded& other = load(plan - 1, request.root, request.program);
        const Binding& binding = other.bindings[request.in_place];
        const bool alone = binding.input == Source::kNothing || binding.result == Source::kNothing;
        if (binding.copies() || !(alone || request.in_place == (variant == kInPlace))) continue;
        if (first != nullptr && (first->input != binding.input || first->output != binding.output)) continue;
        first = &binding;
        offer.plans[variant] = other.plan.get();
        offer.input = at(binding.input);
        offer.output = at(binding.output);
    }
    return first != nullptr;
}

}  // namespace hocket::mpi
