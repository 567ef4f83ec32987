#include "mpi/group.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

#include "mpi/report.h"
#include "policy/caches.h"
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

// What tells machines apart, and on one the processes that cannot name each other, or have another network.
u64 machine() {
    static const u64 found = [] {
        std::string boot;
        std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
        u64 hash = 0;
        for (const char each : boot) hash = mix(hash ^ u64(each));
        struct stat space{};
        for (const char* const name : {"/proc/self/ns/pid", "/proc/self/ns/net"})
            if (::stat(name, &space) == 0) hash = mix(hash ^ space.st_ino);
        return hash;
    }();
    return found;
}

u32 processors() {
    static const u32 found = u32(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
    return found;
}

const Caches& caches() {
    static const Caches found = find_caches(processors(), "/sys/devices/system/cpu");
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
int shared_file(u32 ranks, bool on_several_nodes, u64 stamp) {
    rlimit limit{};  // of which more would end this process by a signal
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kFileBytes) return -1;  // RLIM_INFINITY is most
    const int made = ::memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) return -1;
    if (::fchmod(made, 0600) == 0 && ::ftruncate(made, off_t(kFileBytes)) == 0 &&
        ::fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
        reserve_control(made, ranks, on_several_nodes) == 0 &&
        ::pwrite(made, &stamp, sizeof stamp, off_t(kStamp)) == sizeof stamp)
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

// What ranks say to each other when they meet; a build that changes that changes it.
constexpr unsigned short kMeeting = 3;
constexpr unsigned short kUnplaced = 0xffff;  // the node of a rank that HOCKET_NODES does not place

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

// A plan of another root: `players[r]` does what rank r does there, and so the blocks of the root's buffer are theirs.
void rename(std::vector<u32>& words, const std::vector<u32>& players, Program program) {
    PlanView view;
    if (players[0] == 0 || view_plan(words.data(), words.size(), view) != nullptr) return;
    PlanHeader& h = const_cast<PlanHeader&>(*view.header);
    const auto given = [&](u32& rank) { rank = players[rank % players.size()]; };
    const bool is_root = h.rank == 0;
    for (u32 o = 0; o < h.operands; ++o) {
        OperandRecord& operand = const_cast<OperandRecord&>(view.operands[o]);
        const bool theirs = operand.place > kHere;
        const bool of_root = theirs ? view.connections[operand.end].peer == 0 : is_root;
        const bool of_blocks =
            (program == Program::kGather && (operand.place == kOutput || operand.place == kTheirOutput)) ||
            (program == Program::kScatter && (operand.place == kInput || operand.place == kTheirInput));
        if (of_root && of_blocks) given(operand.unit);
    }
    for (u32 c = 0; c < h.connections; ++c) given(const_cast<ConnectionRecord&>(view.connections[c]).peer);
    for (u32 m = 0; m < h.multicasts; ++m) given(const_cast<MulticastRecord&>(view.multicasts[m]).source);
    given(h.rank);
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

// What a rank has made, for those of its node, and of which version its plans are; 0: it has none.
struct Group::Host {
    u64 version, stamp;
    int process, descriptor;
};

// What a rank says when the ranks of a communicator meet. Its size is that of earlier builds, whose `format` is 0: so
// ranks of both see that they differ. `node`: what tells those of one machine apart that are told not to share memory.
struct Group::Hello {
    Host host;  // of all ranks, if they are on one node
    u64 machine, witness, cores[kCoreWords];
    u32 user, local, processors;
    unsigned short format, node;
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
    if (is_inter != 0) close("it joins two groups");
    else if (size_ == 1) close("it has one rank");
    else if (!is_of_this_job()) close("it is of several jobs");
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
    const bool ends_first = !group->finished_;
    group->finish();
    if (group->own_ != 0 && ends_first) group->mpi_.Comm_free(&group->own_);
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
            if (Reason{r} == Reason::kCommunicator && is_closed()) why += ": " + closed_;
            note(name_, size_, kCollectiveNames[c], why, tallies[c][r]);
        }
    if (communicator_) {
        communicator_->control().leave();
        --served;
    }
    loaded_.clear();
    if (network_) network_->abandon();  // all ranks leave, so nobody waits to hear of it
    communicator_.reset();
    if (network_ && network_->is_busy()) {  // after a call that failed: MPI may still use it, and the control region
        (void)network_.release();
        memory_->leave_control();
    }
    network_.reset();
    memory_.reset();
    if (!is_closed()) close("it was left");
}

Reason Group::open(bool at_once) {
    if (communicator_ == nullptr && !is_closed()) {
        if (!at_once && ++asked_ <= kFirstCalls) return Reason::kFirst;
        meet();
    }
    return is_closed() ? Reason::kCommunicator : Reason::kTaken;
}

// All ranks see the same hellos, and the same least of what each could do: so all are served, or none.
void Group::meet() {
    const Hello mine = hello();
    std::vector<Hello> all(size_, mine);
    if (gather(mine, all)) place(all);
    if (!is_closed() && !nodes_.empty()) meet_across(all);
    if (!is_closed()) close(objection(all));
    if (is_closed()) {
        if (const int made = all[rank_].host.descriptor; made >= 0) ::close(made);
        return;
    }
    bool attaches = options_.attaches && nodes_.empty();
    const bool joins = join(all, attaches), splits = split();
    int can[] = {joins && splits, attaches, splits}, could[std::size(can)] = {};
    mpi_.Allreduce.plain(can, could, int(std::size(can)), mpi_.integer, mpi_.min, handle_);
    if (could[0] == 0) {
        memory_.reset();
        if (could[2] != 0) mpi_.Comm_free(&own_);
        own_ = 0;
        return close("a rank cannot share memory with the others, or serves too many communicators");
    }
    attaches_ = could[1] != 0;
    begin(all);
}

// Makes a communicator of the same ranks. What the MPI reports of that is not the program's affair.
bool Group::split() {
    if (mpi_.Comm_split(handle_, 0, int(rank_), &own_) != 0) return false;
    return mpi_.Comm_set_errhandler(own_, mpi_.abi.errors_return) == 0;
}

// What all ranks say, of each. False where that fails.
template <class Word> bool Group::gather(const Word& mine, std::vector<Word>& all) {
    const int bytes = int(sizeof mine);
    if (mpi_.Allgather.plain(&mine, bytes, mpi_.byte, all.data(), bytes, mpi_.byte, handle_) == 0) return true;
    close("its ranks could not meet");
    return false;
}

Group::Hello Group::hello() {
    static_assert(sizeof(Hello) == 184);
    Hello mine{};
    file_ = PlanFile::find(std::vector<u32>(size_));
    mine.host = host(rank_ == 0);
    mine.machine = machine();
    mine.user = ::geteuid();
    mine.local = local_ranks();
    mine.processors = processors();
    mine.witness = witness_place();
    mine.format = kMeeting;
    if (!options_.nodes.empty()) {
        int place = 0, ranks = 0;
        mpi_.Comm_rank(mpi_.abi.world, &place);
        mpi_.Comm_size(mpi_.abi.world, &ranks);
        mine.node = options_.nodes.size() == u64(ranks) ? (unsigned short)options_.nodes[u64(place)] : kUnplaced;
    }
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        for (u32 core = 0; core < kWordBits * kCoreWords && core < CPU_SETSIZE; ++core)
            if (CPU_ISSET(core, &allowed)) mine.cores[core / kWordBits] |= u64(1) << core % kWordBits;
    return mine;
}

// With the plans that are known now; `makes`: and the memory that ranks of its node share.
Group::Host Group::host(bool makes) const {
    u64 version = kEager ^ kUsuallyExchanged;
    for (const u64 number : {control_bytes(size_, false), control_bytes(size_, true), kExchanged, kUsuallyEager,
                             kAtOnce, kLeastApart, kMostRotated, kCallsAnArea, u64(kTypes), u64(kOperators)})
        version = mix(version ^ number);
    for (const char each : std::string_view(HOCKET_VERSION)) version = mix(version ^ u64(each));
    Host mine{file_ == nullptr ? 0 : mix(mix(file_->hash() ^ version) ^ options_.hash()), 0, ::getpid(), -1};
    if (!makes || file_ == nullptr) return mine;
    mine.stamp = fresh_stamp();
    mine.descriptor = shared_file(size_, !nodes_.empty(), mine.stamp);
    return mine;
}

// Finds the nodes: ranks that can share memory, and are not told to do as if they could not.
void Group::place(const std::vector<Hello>& all) {
    std::map<std::tuple<u64, u32, u32>, u32> known;
    std::vector<u32> nodes;
    for (const Hello& each : all) {
        if (each.format != kMeeting) return close("its ranks have different builds of hocket");
        if (each.node == kUnplaced) return close("HOCKET_NODES does not say where each rank is");
        const std::tuple place(each.machine, each.user, u32(each.node));
        nodes.push_back(known.try_emplace(place, u32(known.size())).first->second);
    }
    if (known.size() > 1) nodes_ = nodes;
    crowded_ = is_crowded(all);
}

// Whether there are more ranks than cores on any machine, or more of this job than its processors.
bool Group::is_crowded(const std::vector<Hello>& all) {
    struct Machine {
        u64 cores[kCoreWords];
        u32 ranks, local, processors;
    };
    std::map<u64, Machine> machines;
    for (const Hello& each : all) {
        Machine& one = machines.try_emplace(each.machine, Machine{{}, 0, 0, each.processors}).first->second;
        for (u32 w = 0; w < kCoreWords; ++w) one.cores[w] |= each.cores[w];
        ++one.ranks;
        one.local = std::max(one.local, each.local);
        one.processors = std::min(one.processors, each.processors);
    }
    return std::any_of(machines.begin(), machines.end(), [](const auto& entry) {
        const Machine& one = entry.second;
        u64 cores = 0;
        for (const u64 word : one.cores) cores += u64(std::popcount(word));
        return one.ranks > cores || std::max(one.ranks, one.local) > one.processors;
    });
}

// Of ranks on several nodes: the plans for these, and what the first rank of each has made for its own.
void Group::meet_across(std::vector<Hello>& all) {
    file_ = PlanFile::find(nodes_);
    Host& mine = all[rank_].host;
    if (mine.descriptor >= 0) ::close(mine.descriptor);
    mine = host(rank_ == leader());
    std::vector<Host> hosts(size_);
    if (!gather(mine, hosts)) return;
    for (u32 r = 0; r < size_; ++r) all[r].host = hosts[r];
}

// Why ranks that have said this are not served, the same on all; empty where nothing is in the way.
std::string Group::objection(const std::vector<Hello>& all) const {
    std::set<u32> led;
    for (u32 r = 0; r < size_; ++r) {
        const Host& host = all[r].host;
        const bool leads = led.insert(nodes_.empty() ? 0 : nodes_[r]).second;
        if (host.version == 0 && nodes_.empty())
            return "there are no plans for so many ranks: see hocket mpi --prepare";
        const std::string placement = PlanFile::placement(nodes_);
        const bool is_long = placement.size() > kLongestName;  // more than a row of the report holds
        if (host.version == 0)
            return "no plans for its nodes: hocket mpi --prepare " + (is_long ? "a long list" : placement);
        if (host.version != all[0].host.version) return "its ranks have different plans or options";
        if (leads && host.descriptor < 0) return "there is no memory to share";
    }
    return "";
}

// Maps what the first rank of the node made, and sees to the rest that may be missing. `attaches`: whether to copy from
// and to the memory of all others, and then whether this rank can.
bool Group::join(const std::vector<Hello>& all, bool& attaches) {
    const Host& host = all[leader()].host;
    const int file = rank_ == leader() ? host.descriptor : open_shared(host.process, host.descriptor, host.stamp);
    if (file < 0) return false;
    if (served >= kMostServed) {
        ::close(file);
        return false;
    }
    std::vector<pid_t> processes;  // none where some are elsewhere
    for (u32 r = 0; r < size_ && nodes_.empty(); ++r) processes.push_back(all[r].host.process);
    try {
        memory_ = std::make_unique<SharedMemory>(file, size_, !nodes_.empty(), std::vector<int>(size_, -1), no_arena,
                                                 processes);
    } catch (const std::exception&) {
        return false;
    }
    for (u32 r = 0; r < size_; ++r) {
        if (r == rank_ || !is_mate(r)) continue;
        if (lifeline(all[r].host.process) < 0) return false;
        attaches = attaches && may_access(all[r].host.process, all[r].witness);
    }
    return true;
}

// All ranks have joined.
void Group::begin(const std::vector<Hello>& all) {
    std::vector<int> lifelines;
    for (u32 r = 0; r < size_; ++r) lifelines.push_back(r == rank_ || !is_mate(r) ? -1 : lifeline(all[r].host.process));
    Settings settings{{.patience = file_->patience(crowded_), .timeout = std::numeric_limits<double>::infinity()}};
    if (options_.cache_bytes) settings.cache_bytes = *options_.cache_bytes;
    else settings.cache_bytes = caches().bytes(u32(mates_of(rank_)));
    if (!options_.cache_bytes && Clock::trusted()) settings.is_far = is_far;
    settings.crowded = crowded_;
    if (attaches_) settings.cma_use = options_.always_attaches ? CmaUse::kAlways : CmaUse::kWhereFaster;
    if (nodes_.empty()) {
        settings.progress = {get_on, this};
    } else {  // the network gets on with all messages of the MPI
        wire_.emplace(&own_);
        network_ = std::make_unique<Network>(rank_, nodes_, memory_->control(), wire_->wire());
        settings.network = network_.get();
    }
    communicator_ = std::make_unique<Communicator>(rank_, size_, *memory_, std::move(lifelines), settings);
    ++served;
    loaded_.resize(u64(size_) * file_->plans());
}

// The lowest rank of this one's node.
u32 Group::leader() const {
    u32 found = 0;
    while (!is_mate(found)) ++found;
    return found;
}

// How many ranks are on the node of one.
u64 Group::mates_of(u32 rank) const {
    return nodes_.empty() ? size_ : u64(std::count(nodes_.begin(), nodes_.end(), nodes_[rank]));
}

// Who does what each rank of a plan does where `root` takes the place of rank 0: on one node those that lie as far
// behind, on several such ranks that those of one node are on one node again (see has_root).
std::vector<u32> Group::cast(u32 root) const {
    std::vector<u32> players(size_);
    std::iota(players.begin(), players.end(), 0);
    if (nodes_.empty()) {
        std::rotate(players.begin(), players.begin() + root, players.end());
        return players;
    }
    std::vector<u32> firsts, others;  // the nodes of rank 0 and of the root, which change places
    for (u32 r = 0; r < size_; ++r) {
        if (nodes_[r] == nodes_[0]) firsts.push_back(r);
        if (nodes_[r] == nodes_[root]) others.push_back(r);
    }
    std::swap(*std::find(others.begin(), others.end(), root), others[0]);
    for (u64 i = 0; i < firsts.size(); ++i) {
        players[others[i]] = firsts[i];
        players[firsts[i]] = others[i];
    }
    return players;
}

// An MPI library gets on with its messages only when it is called: while it looks in vain for one.
void Group::get_on(void* group) {
    const Group& self = *static_cast<const Group*>(group);
    const Library& mpi = self.mpi_;
    int flag = 0;
    mpi.Iprobe(mpi.abi.any_source, mpi.abi.any_tag, self.own_, &flag, mpi.abi.ignored_status);
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
        const std::vector<u32> players = cast(root);
        const auto part_of = std::find(players.begin(), players.end(), rank_) - players.begin();
        Part part = file_->part(plan, u32(part_of));
        auto made = std::make_unique<Loaded>();
        std::copy(std::begin(part.bindings), std::end(part.bindings), made->bindings);
        const auto ready = [&](std::vector<u32>& words) {
            rename(words, players, program);
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
    const bool long_enough = std::max(x_bytes, out_bytes) >= communicator_->attached_bytes(*main.plan);
    if (long_enough && offers(rule, request, offer, at)) call.offer = &offer;
    // What is thrown when others have been told of the call ends the process.
    Outcome outcome = [&]() noexcept {
        return communicator_->run(binding.apart && main.apart ? *main.apart : *main.plan, call);
    }();
    if (outcome.exposed)  // messages may still be on their way there
        for (auto& [place, length] : rooms_) (void)place.release(), length = 0;
    return outcome;
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
