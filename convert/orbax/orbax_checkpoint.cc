#include "convert/orbax/orbax_checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/io/mapped_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Leaf = OrbaxCheckpoint::Leaf;

constexpr const char* kTree = "_METADATA";
constexpr const char* kDatabase = "manifest.ocdbt";
// Array descriptions of the two versions of zarr.
constexpr const char* kZarr2 = ".zarray";
constexpr const char* kZarr3 = "zarr.json";

bool IsItem(const fs::path& dir) {
  return fs::is_regular_file(dir / kTree) || fs::is_regular_file(dir / kDatabase);
}

bool IsStep(const fs::path& dir) { return fs::is_regular_file(dir / "_CHECKPOINT_METADATA"); }

// A name that is a number; those of unfinished steps have more behind it.
std::optional<int64_t> StepOf(const fs::path& dir) {
  const std::string name = dir.filename().string();
  int64_t step = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (fault != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::vector<fs::path> ItemsOf(const fs::path& step) {
  std::vector<fs::path> items;
  for (const fs::directory_entry& entry : fs::directory_iterator(step)) {
    if (entry.is_directory() && IsItem(entry.path())) items.push_back(entry.path());
  }
  std::sort(items.begin(), items.end());
  return items;
}

// The directory of the item that `path` means; empty: none.
fs::path FindItem(const fs::path& path) {
  if (!fs::is_directory(path)) return {};
  if (IsItem(path)) return path;
  const std::vector<fs::path> items = ItemsOf(path);
  if (items.size() > 1) {
    std::string names;
    for (const fs::path& item : items)
      names += (names.empty() ? "" : ", ") + item.filename().string();
    throw Error(ErrorCode::kUnsupported,
                path.string() + ": has several items (" + names + "); name the directory of one");
  }
  if (!items.empty()) return items.front();
  if (IsStep(path)) return {};
  fs::path last;
  int64_t last_step = -1;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::optional<int64_t> step = entry.is_directory() ? StepOf(entry.path()) : std::nullopt;
    if (!step || *step <= last_step) continue;
    if (!IsStep(entry.path()) && ItemsOf(entry.path()).empty() && !IsItem(entry.path())) continue;
    last_step = *step;
    last = entry.path();
  }
  return last.empty() ? fs::path() : FindItem(last);
}

// `_METADATA`: the tree, each leaf with its keys. The names of its entries are Python's and not
// read.
std::vector<Leaf> LeavesOfTree(const fs::path& file) {
  const auto mapped = engine::MappedFile::Open(file);
  const std::string what = file.string();
  const Json root = engine::ParseUntrustedJson(
      {reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size()}, what);
  const auto broken = [&](const std::string& why) -> Error {
    return {ErrorCode::kDataLoss, what + ": " + why};
  };
  const auto tree = root.find("tree_metadata");
  if (tree == root.end() || !tree->is_object()) throw broken("has no tree_metadata");
  std::vector<Leaf> leaves;
  for (const auto& [name, entry] : tree->items()) {
    const auto keys = entry.find("key_metadata");
    if (keys == entry.end() || !keys->is_array()) throw broken(Quoted(name) + " has no keys");
    Leaf leaf;
    for (const Json& key : *keys) {
      const auto text = key.find("key");
      if (text == key.end() || !text->is_string()) throw broken(Quoted(name) + " has a bad key");
      leaf.path.push_back(text->get<std::string>());
    }
    if (const auto value = entry.find("value_metadata"); value != entry.end()) {
      leaf.value_type = engine::JsonStringOr(*value, "value_type", "", what);
    }
    leaves.push_back(std::move(leaf));
  }
  return leaves;
}

// Where no file tells the tree, the arrays do: a name is the keys joined by dots.
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
  try {
    return !FindItem(path).empty();
  } catch (const Error&) {
    return true;  // one that Open refuses for a reason of its own
  }
}

OrbaxCheckpoint OrbaxCheckpoint::Open(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorCode::kNotFound, path.string() + " does not exist");
  OrbaxCheckpoint checkpoint;
  checkpoint.dir_ = FindItem(path);
  if (checkpoint.dir_.empty()) {
    throw Error(ErrorCode::kUnsupported, path.string() + ": no checkpoint of Orbax: neither " +
                                             kTree + " nor " + kDatabase +
                                             " in it, in a finished step or in an item of one");
  }
  const fs::path& dir = checkpoint.dir_;
  checkpoint.is_ocdbt_ = fs::is_regular_file(dir / kDatabase);
  const std::shared_ptr<const KeyValues> values =
      checkpoint.is_ocdbt_ ? OpenOcdbt(dir) : OpenFileTree(dir);
  checkpoint.arrays_ = std::make_shared<const ZarrReader>(values);
  checkpoint.leaves_ =
      fs::is_regular_file(dir / kTree) ? LeavesOfTree(dir / kTree) : LeavesOfKeys(values->Keys());
  for (Leaf& leaf : checkpoint.leaves_) {
    if (!HasData(leaf.value_type)) continue;
    leaf.array = FindArray(*values, leaf.name(), dir.string());
    if (!leaf.array) {
      throw Error(ErrorCode::kDataLoss, dir.string() + ": the tree has a leaf " +
                                            Quoted(leaf.name()) +
                                            ", the store no array of that name");
    }
  }
  std::sort(checkpoint.leaves_.begin(), checkpoint.leaves_.end(),
            [](const Leaf& a, const Leaf& b) { return a.path < b.path; });
  return checkpoint;
}

namespace {

const ZarrArray& ArrayOf(const Leaf& leaf) {
  if (!leaf.array) throw Error(ErrorCode::kInternal, leaf.name() + " has no array");
  return *leaf.array;
}

}  // namespace

void OrbaxCheckpoint::Read(const Leaf& leaf, std::span<std::byte> out,
                           const ForAll& for_all) const {
  arrays_->Read(leaf.name(), ArrayOf(leaf), out, for_all);
}

void OrbaxCheckpoint::ReadRuns(const Leaf& leaf, const TakeRun& take, const ForAll& for_all) const {
  arrays_->ReadRuns(leaf.name(), ArrayOf(leaf), take, for_all);
}

void OrbaxCheckpoint::Decompress(const Leaf& leaf, const ForAll& for_all) const {
  arrays_->Decompress(leaf.name(), ArrayOf(leaf), for_all);
}

}  // namespace tandem::convert
