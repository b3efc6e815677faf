// Writes TensorStore's OCDBT. Values go to data files as they come. Finish writes the tree of keys
// from its leaves up, and last the manifest that names the root. Format:
// https://google.github.io/tensorstore/kvstore/ocdbt

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "convert/orbax/byte_writer.h"
#include "convert/orbax/key_value_writer.h"
#include "convert/orbax/zstd.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kWrittenManifestMagic = 0x0cdb3a2a;
constexpr uint32_t kWrittenNodeMagic = 0x0cdb20de;
constexpr size_t kWrittenEnvelopeBytes = 4 + 8 + 1 + 1 + 4;
constexpr size_t kMostKeyBytes = 65535;
// Upper bound for a node entry besides key and value: a few numbers of at most ten bytes.
constexpr size_t kEntryBytes = 64;

struct Place {
  size_t file = 0;  // index of the data file
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct Value {
  std::optional<Place> outside;
  std::string inlined;
};

// A written node, with the fields that its parent stores.
struct Subtree {
  std::string first_key;
  Place at;
  uint64_t n_keys = 0;
  uint64_t tree_bytes = 0;     // of the subtree's nodes, including this one
  uint64_t outside_bytes = 0;  // of values in data files
};

constexpr size_t kIdDigits = 32;

// Converts hexadecimal digits to bytes.
std::string BytesOf(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    unsigned byte = 0;
    std::from_chars(digits.data() + i, digits.data() + i + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string Envelope(uint32_t magic, const ByteWriter& body) {
  const std::vector<std::byte> packed = EncodeZstd(body.bytes());
  ByteWriter out;
  out.U32Big(magic);
  out.U64(kWrittenEnvelopeBytes + packed.size());
  out.Varint(0);  // version
  out.Varint(1);  // zstd
  out.Text({reinterpret_cast<const char*>(packed.data()), packed.size()});
  out.U32(engine::Crc32c(0, out.bytes()));
  return out.text();
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

// Writes names as the lengths of shared prefix and rest, and then the rests. `between` writes the
// column that follows the lengths.
template <class Between>
void PutNames(const std::vector<std::string_view>& names, const Between& between, ByteWriter* out) {
  std::vector<size_t> shared(names.size(), 0);
  for (size_t i = 1; i < names.size(); ++i) shared[i] = CommonPrefix(names[i - 1], names[i]);
  for (size_t i = 1; i < names.size(); ++i) out->Varint(shared[i]);
  for (size_t i = 0; i < names.size(); ++i) out->Varint(names[i].size() - shared[i]);
  between();
  for (size_t i = 0; i < names.size(); ++i) out->Text(names[i].substr(shared[i]));
}

class OcdbtWriter : public KeyValueWriter {
 public:
  OcdbtWriter(const fs::path& dir, const OrbaxStamp& stamp, const OcdbtSizes& sizes)
      : dir_(dir), stamp_(stamp), sizes_(sizes) {
    TANDEM_CHECK(IsOrbaxId(stamp_.id));
    fs::create_directories(dir_ / "d");
  }

  StoredValue Put(const std::string& key, std::span<const std::byte> value) override {
    StoredValue put{.bytes = value.size(), .inlined = std::nullopt};
    if (IsInlined(value.size())) {
      put.inlined.emplace(reinterpret_cast<const char*>(value.data()), value.size());
      Keep(key, {.outside = std::nullopt, .inlined = *put.inlined});
    } else {
      Keep(key, {.outside = Append(value), .inlined = {}});
    }
    return put;
  }

  bool Restore(const std::string& key, const StoredValue& value) override {
    if (IsInlined(value.bytes) != value.inlined.has_value()) return false;
    if (value.inlined) {
      Keep(key, {.outside = std::nullopt, .inlined = *value.inlined});
      return value.inlined->size() == value.bytes;
    }
    const Place place = NextPlace(value.bytes);
    Keep(key, {.outside = place, .inlined = {}});
    std::error_code absent;
    const fs::path& path = paths_[place.file];
    if (!fs::is_regular_file(fs::symlink_status(path, absent))) return false;
    const uintmax_t there = fs::file_size(path, absent);
    return !absent && place.offset <= there && place.length <= there - place.offset;
  }

  std::vector<std::string> Files() const override { return names_; }
  std::vector<fs::path> TakeChanged() override {
    const std::set<fs::path> changed = std::exchange(changed_, {});
    return {changed.begin(), changed.end()};
  }

  void Finish() override {
    std::vector<Subtree> level = WriteLeaves();
    uint8_t height = 0;
    while (level.size() > 1) level = WriteInner(level, ++height);
    CloseFile();
    WriteManifest(level.empty() ? std::nullopt : std::optional(level.front()), height);
  }

 private:
  bool IsInlined(uint64_t bytes) const { return bytes <= sizes_.max_inline_value_bytes; }

  void Keep(const std::string& key, Value value) {
    if (key.empty() || key.size() > kMostKeyBytes) {
      throw Error(ErrorCode::kInvalidArgument, Quoted(key) + " is not a valid OCDBT key");
    }
    if (!values_.emplace(key, std::move(value)).second) {
      throw Error(ErrorCode::kInternal, Quoted(key) + " was added twice");
    }
  }

  // Reserves the next bytes of the data files. A file's name is the id with its number added to the
  // last digits.
  Place NextPlace(uint64_t bytes) {
    if (names_.empty() || end_ >= sizes_.max_file_bytes) {
      constexpr size_t kDigits = 8;
      const std::string_view id = stamp_.id;
      uint32_t number = 0;
      std::from_chars(id.end() - kDigits, id.end(), number, 16);
      number += static_cast<uint32_t>(names_.size());
      char digits[kDigits + 1];
      std::snprintf(digits, sizeof digits, "%08x", number);
      names_.push_back("d/" + std::string(id.substr(0, id.size() - kDigits)) + digits);
      paths_.push_back(dir_ / names_.back());
      end_ = 0;
    }
    const Place place{names_.size() - 1, end_, bytes};
    end_ += bytes;
    return place;
  }

  Place Append(std::span<const std::byte> bytes) {
    const Place place = NextPlace(bytes.size());
    if (!file_ || place.offset == 0) OpenFile(place);
    engine::WriteAll(*file_, bytes, paths_[place.file]);
    changed_.insert(paths_[place.file]);
    return place;
  }

  // Opens a file for writing at `place`. Later bytes are cut off, because they may be incomplete.
  void OpenFile(const Place& place) {
    CloseFile();
    const fs::path& path = open_path_ = paths_[place.file];
    if (place.offset == 0) {
      file_ = engine::CreateNewFile(path);
      changed_.insert({dir_, path.parent_path()});
      return;
    }
    file_ = engine::FileDescriptor(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    if (file_->get() < 0) engine::ThrowSystemError("open", path, errno);
    if (ftruncate(file_->get(), static_cast<off_t>(place.offset)) != 0) {
      engine::ThrowSystemError("cut", path, errno);
    }
  }

  void CloseFile() {
    if (file_) file_->Close(open_path_);
    file_.reset();
  }

  // Writes a node's table of data files, ascending; `numbers` receives each file's index in it.
  void PutFiles(const std::vector<Place>& places, std::map<size_t, size_t>* numbers,
                ByteWriter* out) const {
    std::map<std::string_view, size_t> used;
    for (const Place& place : places) used.emplace(names_[place.file], place.file);
    std::vector<std::string_view> names;
    for (const auto& [name, file] : used) {
      numbers->emplace(file, names.size());
      names.push_back(name);
    }
    out->Varint(names.size());
    const auto bases = [&] {
      for (size_t i = 0; i < names.size(); ++i) out->Varint(0);
    };
    PutNames(names, bases, out);
  }

  Subtree WriteNode(const ByteWriter& body, std::string first_key) {
    const std::string object = Envelope(kWrittenNodeMagic, body);
    Subtree subtree;
    subtree.first_key = std::move(first_key);
    subtree.at = Append(std::as_bytes(std::span(object)));
    subtree.tree_bytes = object.size();
    return subtree;
  }

  std::vector<Subtree> WriteLeaves() {
    std::vector<Subtree> leaves;
    for (auto first = values_.begin(); first != values_.end();) {
      size_t bytes = 0;
      auto last = first;
      while (last != values_.end()) {
        bytes += last->first.size() + last->second.inlined.size() + kEntryBytes;
        if (last != first && bytes > sizes_.max_decoded_node_bytes) break;
        ++last;
      }
      leaves.push_back(WriteLeaf({first, last}));
      first = last;
    }
    return leaves;
  }

  using Entries = std::map<std::string, Value>;
  struct Range {
    Entries::const_iterator first, last;
    auto begin() const { return first; }
    auto end() const { return last; }
  };

  Subtree WriteLeaf(const Range& entries) {
    std::vector<Place> places;
    std::vector<std::string_view> keys;
    uint64_t outside_bytes = 0;
    for (const auto& [key, value] : entries) {
      keys.push_back(key);
      if (!value.outside) continue;
      places.push_back(*value.outside);
      outside_bytes += value.outside->length;
    }
    ByteWriter body;
    std::map<size_t, size_t> numbers;
    body.U8(0);  // height
    PutFiles(places, &numbers, &body);
    body.Varint(keys.size());
    PutNames(
        keys, [] {}, &body);
    for (const auto& [key, value] : entries) {
      body.Varint(value.outside ? value.outside->length : value.inlined.size());
    }
    for (const auto& [key, value] : entries) body.U8(value.outside ? 1 : 0);
    for (const Place& place : places) body.Varint(numbers[place.file]);
    for (const Place& place : places) body.Varint(place.offset);
    for (const auto& [key, value] : entries) body.Text(value.inlined);
    Subtree leaf = WriteNode(body, entries.first->first);
    leaf.n_keys = keys.size();
    leaf.outside_bytes = outside_bytes;
    return leaf;
  }

  // Each node has at least two children; otherwise the levels would never end.
  std::vector<Subtree> WriteInner(const std::vector<Subtree>& children, uint8_t height) {
    std::vector<Subtree> nodes;
    for (size_t first = 0; first < children.size();) {
      size_t bytes = 0;
      size_t last = first;
      while (last < children.size()) {
        bytes += children[last].first_key.size() + kEntryBytes;
        if (last >= first + 2 && bytes > sizes_.max_decoded_node_bytes) break;
        ++last;
      }
      nodes.push_back(WriteInnerNode(std::span(children).subspan(first, last - first), height));
      first = last;
    }
    return nodes;
  }

  Subtree WriteInnerNode(std::span<const Subtree> children, uint8_t height) {
    std::vector<Place> places;
    std::vector<std::string_view> keys;
    for (const Subtree& child : children) {
      places.push_back(child.at);
      keys.push_back(child.first_key);
    }
    ByteWriter body;
    std::map<size_t, size_t> numbers;
    body.U8(height);
    PutFiles(places, &numbers, &body);
    body.Varint(keys.size());
    // Children store whole keys, so their common prefix is empty.
    const auto common = [&] {
      for (size_t i = 0; i < keys.size(); ++i) body.Varint(0);
    };
    PutNames(keys, common, &body);
    for (const Place& place : places) body.Varint(numbers[place.file]);
    for (const Place& place : places) body.Varint(place.offset);
    for (const Place& place : places) body.Varint(place.length);
    Subtree sum;
    for (const Subtree& child : children) {
      body.Varint(child.n_keys);
      sum.n_keys += child.n_keys;
    }
    for (const Subtree& child : children) {
      body.Varint(child.tree_bytes);
      sum.tree_bytes += child.tree_bytes;
    }
    for (const Subtree& child : children) {
      body.Varint(child.outside_bytes);
      sum.outside_bytes += child.outside_bytes;
    }
    Subtree node = WriteNode(body, children.front().first_key);
    node.n_keys = sum.n_keys;
    node.tree_bytes += sum.tree_bytes;
    node.outside_bytes = sum.outside_bytes;
    return node;
  }

  void WriteManifest(const std::optional<Subtree>& root, uint8_t height) const {
    ByteWriter body;
    body.Text(BytesOf(stamp_.id));
    body.U8(0);  // a single manifest
    body.Varint(sizes_.max_inline_value_bytes);
    body.Varint(sizes_.max_decoded_node_bytes);
    body.U8(4);      // log2 of the arity of the tree of versions
    body.Varint(1);  // zstd
    body.U32(0);     // default level
    std::map<size_t, size_t> numbers;
    PutFiles(root ? std::vector<Place>{root->at} : std::vector<Place>{}, &numbers, &body);
    body.Varint(1);  // number of versions
    body.Varint(1);  // generation
    body.U8(height);
    const uint64_t missing = ~uint64_t{0};
    body.Varint(0);  // data file
    body.Varint(root ? root->at.offset : missing);
    body.Varint(root ? root->at.length : missing);
    body.Varint(root ? root->n_keys : 0);
    body.Varint(root ? root->tree_bytes : 0);
    body.Varint(root ? root->outside_bytes : 0);
    body.U64(static_cast<uint64_t>(stamp_.time_ns));
    body.Varint(0);  // no older versions
    engine::WriteFileAtomically(dir_ / "manifest.ocdbt", Envelope(kWrittenManifestMagic, body));
  }

  const fs::path dir_;
  const OrbaxStamp stamp_;
  const OcdbtSizes sizes_;
  std::map<std::string, Value> values_;
  std::vector<std::string> names_;  // of data files, relative to the directory
  std::vector<fs::path> paths_;
  std::optional<engine::FileDescriptor> file_;  // the last data file, once opened
  fs::path open_path_;                          // path of file_
  uint64_t end_ = 0;                            // bytes in the last data file
  std::set<fs::path> changed_;
};

}  // namespace

OrbaxStamp NewOrbaxStamp() {
  OrbaxStamp stamp;
  std::random_device random;
  while (stamp.id.size() < kIdDigits) stamp.id += "0123456789abcdef"[random() % 16];
  stamp.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  return stamp;
}

bool IsOrbaxId(const std::string& id) {
  return id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == id.npos;
}

std::unique_ptr<KeyValueWriter> WriteOcdbt(const fs::path& dir, const OrbaxStamp& stamp,
                                           const OcdbtSizes& sizes) {
  return std::make_unique<OcdbtWriter>(dir, stamp, sizes);
}

}  // namespace tandem::convert
