#include "mpi/plan_file.h"

#include <dlfcn.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>

#include "protocol/header.h"

namespace hocket::mpi {
namespace {

// Reads numbers of seven bits a byte, the low ones first.
class Reader {
  public:
    Reader(const std::vector<unsigned char>& bytes, u64 at) : bytes_(bytes), at_(at) {}
    u64 number() {
        u64 found = 0;
        for (u32 shift = 0; shift < 64; shift += 7) {
            if (at_ >= bytes_.size()) break;
            const u64 byte = bytes_[at_++];
            found |= (byte & 0x7f) << shift;
            if (byte < 0x80) return found;
        }
        throw std::runtime_error("a file of plans is damaged");
    }
    u32 word() { return u32(number()); }
    bool flag() { return number() != 0; }
    Source source() { return Source(std::min<u64>(number(), u64(Source::kScratch))); }
    std::vector<u32> words() {
        std::vector<u32> found(std::min<u64>(number(), bytes_.size()));
        for (u32& each : found) each = word();
        return found;
    }
    u64 at() const { return at_; }

  private:
    const std::vector<unsigned char>& bytes_;
    u64 at_;
};

// Where files of plans lie: where the user says, beside this library, and where `hocket mpi` keeps what it has made.
std::vector<std::string> directories() {
    std::vector<std::string> found;
    if (const char* const given = std::getenv("HOCKET_MPI_PLANS")) found.emplace_back(given);
    Dl_info here{};
    if (::dladdr(reinterpret_cast<const void*>(&directories), &here) != 0 && here.dli_fname != nullptr) {
        const std::string library = here.dli_fname;
        found.push_back(library.substr(0, library.find_last_of('/') + 1) + "mpi_plans");
    }
    const char *const cache = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
    if (cache != nullptr && *cache != 0) found.push_back(std::string(cache) + "/hocket/mpi_plans");
    else if (home != nullptr) found.push_back(std::string(home) + "/.cache/hocket/mpi_plans");
    return found;
}

// What a file is called, but for the suffix, and by whoever makes it (plan_files.py: _path).
std::string name(const std::vector<u32>& nodes) {
    const std::string placement = PlanFile::placement(nodes);
    if (placement.size() <= kLongestName) return placement;
    u64 hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char each : placement) hash = (hash ^ u64(each)) * 0x100000001b3;
    char found[64];
    std::snprintf(found, sizeof found, "%zu-%016llx", nodes.size(), static_cast<unsigned long long>(hash));
    return found;
}

}  // namespace

std::string PlanFile::placement(const std::vector<u32>& nodes) {
    std::string each, counts;
    u32 count = 0;
    for (u64 r = 0; r < nodes.size(); ++r) {
        if (r != 0) each += ',';
        each += std::to_string(nodes[r]);
        ++count;
        if (r + 1 < nodes.size() && nodes[r + 1] == nodes[r]) continue;
        if (!counts.empty()) counts += '+';
        counts += std::to_string(count);
        count = 0;
    }
    return std::is_sorted(nodes.begin(), nodes.end()) ? counts : each;
}

std::shared_ptr<const PlanFile> PlanFile::find(const std::vector<u32>& nodes) {
    static std::mutex lock;
    static auto& known = *new std::map<std::vector<u32>, std::shared_ptr<const PlanFile>>;  // for good, as in library.h
    const std::lock_guard held(lock);
    const auto [at, is_new] = known.try_emplace(nodes);
    if (is_new)
        for (const std::string& directory : directories()) {
            at->second = read(directory + "/" + name(nodes) + ".plans", nodes);
            if (at->second != nullptr) break;
        }
    return at->second;
}

std::shared_ptr<const PlanFile> PlanFile::read(const std::string& path, const std::vector<u32>& nodes) {
    const u64 ranks = nodes.size();
    std::ifstream stream(path, std::ios::binary);
    if (!stream) return nullptr;
    std::shared_ptr<PlanFile> found(new PlanFile);
    found->bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    try {
        Reader reader(found->bytes_, 0);
        if (reader.number() != kPlanFileFormat || reader.number() != kPlanMagic || reader.number() != ranks)
            return nullptr;
        for (const u32 node : nodes)
            if (reader.number() != node) return nullptr;
        found->ranks_ = u32(ranks);
        for (Patience& patience : found->patience_) patience = {reader.word(), reader.word()};
        found->rules_.resize(std::min<u64>(reader.number(), found->bytes_.size()));
        const u64 plans = std::min<u64>(reader.number(), found->bytes_.size());
        for (Rule& r : found->rules_) {
            r.program = Program(std::min<u64>(reader.number(), u64(Program::kAllToAll)));
            r.contract = reader.word();
            r.crowded = reader.flag();
            r.uneven = reader.flag();
            r.least = reader.number();
            r.most = reader.number();
            r.plan = reader.word();
            r.tile = reader.word();
            for (u32& instead : r.instead) instead = reader.word();
            if (&r != found->rules_.data() && r.program < (&r)[-1].program) return nullptr;
            for (u32 p = u32(r.program) + 1; p <= kPrograms; ++p) ++found->first_[p];
            if (r.plan >= plans || r.instead[0] > plans || r.instead[1] > plans) return nullptr;
        }
        std::vector<u64> lengths;
        for (u64 p = 0; p < plans; ++p) {
            found->digests_.push_back(reader.number());
            for (u64 r = 0; r < ranks; ++r) lengths.push_back(reader.number());
        }
        found->places_.push_back(reader.at());
        for (const u64 length : lengths) found->places_.push_back(found->places_.back() + length);
        if (found->places_.back() != found->bytes_.size()) return nullptr;
    } catch (const std::runtime_error&) {
        return nullptr;
    }
    for (const unsigned char byte : found->bytes_) found->hash_ = (found->hash_ ^ byte) * 0x100000001b3;
    return found;
}

const Rule* PlanFile::rule(Program program, u32 contract, bool crowded, bool uneven, u64 size) const {
    for (u32 r = first_[u32(program)]; r < first_[u32(program) + 1]; ++r) {
        const Rule& rule = rules_[r];
        if (rule.contract == contract && rule.crowded == crowded && rule.uneven == uneven && rule.least <= size &&
            size <= rule.most)
            return &rule;
    }
    return nullptr;
}

Part PlanFile::part(u32 plan, u32 rank) const {
    Reader reader(bytes_, places_[u64(plan) * ranks_ + rank]);
    Part found;
    for (Binding& b : found.bindings) {
        b.input = reader.source();
        b.output = reader.source();
        b.initial = reader.source();
        b.result = reader.source();
        b.to_own = reader.flag();
        b.taken = reader.flag();
        b.apart = reader.flag();
    }
    found.words = reader.words();
    found.apart = reader.words();
    return found;
}

}  // namespace hocket::mpi
