#include "convert/orbax/orbax_checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "convert/orbax/tree_metadata.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/mapped_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Leaf = OrbaxCheckpoint::Leaf;

constexpr const char* kTreeFile = "_METADATA";
constexpr const char* kDatabase = "manifest.ocdbt";
// Array descriptions of the two versions of zarr.
constexpr const char* kZarr2 = ".zarray";
constexpr const char* kZarr3 = "zarr.json";

bool IsItem(const fs::path& dir) {
  return fs::is_regular_file(dir / kTreeFile) || fs::is_regular_file(dir / kDatabase);
}

bool IsStep(const fs::path& dir) { return fs::is_regular_file(dir / "_CHECKPOINT_METADATA"); }

// Orbax renames a step or an item to its final name when it is complete.
constexpr const char* kUnfinished = ".orbax-checkpoint-tmp";

bool IsUnfinished(const fs::path& path) {
  return path.filename().string().find(kUnfinished) != std::string::npos;
}

[[noreturn]] void RefuseUnfinished(const fs::path& path) {
  throw Error(ErrorCode::kUnsupported,
              path.string() +
                  ": an unfinished Orbax checkpoint (its writer stopped early); name a finished "
                  "step, or save the step again");
}

// Returns the number in a step's name: "100", "000100", or with a prefix "checkpoint_100".
std::optional<int64_t> StepOf(const fs::path& dir) {
  std::string name = dir.filename().string();
  if (const size_t bar = name.rfind('_'); bar != std::string::npos && bar > 0) {
    name.erase(0, bar + 1);
  }
  int64_t step = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (fault != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::vector<fs::path> ItemsOf(const fs::path& step) {
  std::vector<fs::path> items;
  for (const fs::directory_entry& entry : fs::directory_iterator(step)) {
    if (entry.is_directory() && IsItem(entry.path()) && !IsUnfinished(entry.path())) {
      items.push_back(entry.path());
    }
  }
  std::sort(items.begin(), items.end());
  return items;
}

// Throws if the directory holds an unfinished step or item. REQUIRES: it has no finished one.
void RefuseUnfinishedIn(const fs::path& dir) {
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (entry.is_directory() && IsUnfinished(entry.path())) RefuseUnfinished(entry.path());
  }
}

// Returns the directory of the item that `path` denotes, or an empty path.
fs::path FindItem(const fs::path& path) {
  if (!fs::is_directory(path)) return {};
  if (IsUnfinished(path)) RefuseUnfinished(path);
  if (IsItem(path)) return path;
  const std::vector<fs::path> items = ItemsOf(path);
  if (items.size() > 1) {
    std::string names;
    for (const fs::path& item : items)
      names += (names.empty() ? "" : ", ") + item.filename().string();
    throw Error(ErrorCode::kUnsupported, path.string() + ": the step has several items (" + names +
                                             "); give the directory of one of them");
  }
  if (!items.empty()) return items.front();
  if (IsStep(path)) {
    RefuseUnfinishedIn(path);
    return {};
  }
  fs::path last;
  int64_t last_step = -1;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::optional<int64_t> step = entry.is_directory() ? StepOf(entry.path()) : std::nullopt;
    if (!step || *step <= last_step) continue;
    if (!IsStep(entry.path()) && ItemsOf(entry.path()).empty() && !IsItem(entry.path())) continue;
    last_step = *step;
    last = entry.path();
  }
  if (last.empty()) RefuseUnfinishedIn(path);
  return last.empty() ? fs::path() : FindItem(last);
}

// Reads the leaves from `_METADATA`.
std::vector<Leaf> LeavesOfTree(const fs::path& file) {
  const auto mapped = engine::MappedFile::Open(file);
  std::vector<Leaf> leaves;
  for (TreeEntry& entry : ParseTreeMetadata(
           {reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size()},
           file.string())) {
    leaves.push_back({std::move(entry.path), std::move(entry.value_type), {}});
  }
  return leaves;
}

// Derives the tree from the arrays' names, which are keys joined by dots.
std::vector<Leaf> LeavesOfKeys(const std::vector<std::string>& keys) {
  std::vector<Leaf> leaves;
  for (const std::string& key : keys) {
    const size_t slash = key.rfind('/');
    if (slash == std::string::npos) continue;
    const std::string file = key.substr(slash + 1);
    if (file != kZarr2 && file != kZarr3) continue;
    Leaf leaf;
    size_t from = 0;
    for (size_t i = 0; i <= slash; ++i) {
      if (i < slash && key[i] != '.') continue;
      leaf.path.push_back(key.substr(from, i - from));
      from = i + 1;
    }
    leaves.push_back(std::move(leaf));
  }
  return leaves;
}

std::optional<ZarrArray> FindArray(const KeyValues& values, const std::string& name,
                                   const std::string& dir) {
  for (const int version : {3, 2}) {
    const std::string key = name + "/" + (version == 3 ? kZarr3 : kZarr2);
    const std::optional<StoredBytes> stored = values.Find(key);
    if (!stored) continue;
    return ParseZarr(version,
                     {reinterpret_cast<const char*>(stored->bytes.data()), stored->bytes.size()},
                     dir + ": " + Quoted(key));
  }
  return std::nullopt;
}

bool HasData(const std::string& value_type) {
  constexpr std::array kEmpty = {"None", "Dict", "List", "Tuple", "NamedTuple", "string"};
  return std::find(kEmpty.begin(), kEmpty.end(), value_type) == kEmpty.end();
}

}  // namespace

std::string OrbaxCheckpoint::Leaf::name() const {
  std::string name;
  for (const std::string& key : path) name += (name.empty() ? "" : ".") + key;
  return name;
}

bool OrbaxCheckpoint::Is(const fs::path& path) {
  bool is_checkpoint = true;
  // Open refuses a damaged one for a specific reason.
  ErrorOf([&] { is_checkpoint = !FindItem(path).empty(); });
  return is_checkpoint;
}

OrbaxCheckpoint OrbaxCheckpoint::Open(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorCode::kNotFound, path.string() + " does not exist");
  OrbaxCheckpoint checkpoint;
  checkpoint.dir_ = FindItem(path);
  if (checkpoint.dir_.empty()) {
    throw Error(ErrorCode::kUnsupported,
                path.string() + ": not an Orbax checkpoint: neither " + kTreeFile + " nor " +
                    kDatabase + " exists in it, in a finished step or in a step's item");
  }
  const fs::path& dir = checkpoint.dir_;
  checkpoint.is_ocdbt_ = fs::is_regular_file(dir / kDatabase);
  const std::shared_ptr<const KeyValues> values =
      checkpoint.is_ocdbt_ ? OpenOcdbt(dir) : OpenFileTree(dir);
  checkpoint.arrays_ = std::make_shared<const ZarrReader>(values);
  checkpoint.leaves_ = fs::is_regular_file(dir / kTreeFile) ? LeavesOfTree(dir / kTreeFile)
                                                            : LeavesOfKeys(values->Keys());
  for (Leaf& leaf : checkpoint.leaves_) {
    if (!HasData(leaf.value_type)) continue;
    leaf.array = FindArray(*values, leaf.name(), dir.string());
    if (!leaf.array) {
      throw Error(ErrorCode::kDataLoss, dir.string() + ": the tree has the leaf " +
                                            Quoted(leaf.name()) +
                                            ", but the store has no array with that name");
    }
  }
  std::sort(checkpoint.leaves_.begin(), checkpoint.leaves_.end(),
            [](const Leaf& a, const Leaf& b) { return a.path < b.path; });
  const auto twin =
      std::adjacent_find(checkpoint.leaves_.begin(), checkpoint.leaves_.end(),
                         [](const Leaf& a, const Leaf& b) { return a.path == b.path; });
  if (twin != checkpoint.leaves_.end()) {
    throw Error(ErrorCode::kDataLoss,
                dir.string() + ": the leaf " + Quoted(twin->name()) + " occurs twice in the tree");
  }
  return checkpoint;
}

namespace {

const ZarrArray& ArrayOf(const Leaf& leaf) {
  if (!leaf.array) throw Error(ErrorCode::kInternal, leaf.name() + " has no array");
  return *leaf.array;
}

}  // namespace

void OrbaxCheckpoint::CheckStored(const Leaf& leaf) const {
  arrays_->CheckStored(leaf.name(), ArrayOf(leaf));
}

void OrbaxCheckpoint::Read(const Leaf& leaf, std::span<std::byte> out,
                           const ParallelFor& parallel_for) const {
  arrays_->Read(leaf.name(), ArrayOf(leaf), out, parallel_for);
}

void OrbaxCheckpoint::ReadRuns(const Leaf& leaf, const TakeRun& take,
                               const ParallelFor& parallel_for) const {
  arrays_->ReadRuns(leaf.name(), ArrayOf(leaf), take, parallel_for);
}

void OrbaxCheckpoint::Decompress(const Leaf& leaf, const ParallelFor& parallel_for) const {
  arrays_->Decompress(leaf.name(), ArrayOf(leaf), parallel_for);
}

}  // namespace tandem::convert
