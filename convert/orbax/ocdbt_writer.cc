// TensorStore's OCDBT, written: values go to data files as they come, the tree of keys over them
// when all are there, from its leaves up, and last the manifest that names its root. Format:
// https://google.github.io/tensorstore/kvstore/ocdbt

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "convert/orbax/byte_writer.h"
#include "convert/orbax/key_value_writer.h"
#include "convert/orbax/zstd.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kManifestMagic = 0x0cdb3a2a;
constexpr uint32_t kNodeMagic = 0x0cdb20de;
constexpr size_t kEnvelopeBytes = 4 + 8 + 1 + 1 + 4;
constexpr size_t kMaxKeyBytes = 65535;
// An entry of a node costs this beside its key and value: columns of numbers, each of at most ten
// bytes.
constexpr size_t kEntryBytes = 64;

struct Place {
  size_t file = 0;  // into the list of data files
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct Value {
  std::optional<Place> outside;
  std::string inlined;
};

// A node that has been written, as its parent names it.
struct Subtree {
  std::string first_key;
  Place at;
  uint64_t n_keys = 0;
  uint64_t tree_bytes = 0;     // of its nodes, itself among them
  uint64_t outside_bytes = 0;  // of the values that lie outside of them
};

std::string RandomBytes(size_t n) {
  std::random_device device;
  std::string bytes;
  for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(device());
  return bytes;
}

std::string RandomName() {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (const char byte : RandomBytes(16)) {
    name += kDigits[(byte >> 4) & 15];
    name += kDigits[byte & 15];
  }
  return name;
}

std::string Envelope(uint32_t magic, const ByteWriter& body) {
  const std::vector<std::byte> packed = EncodeZstd(body.bytes());
  ByteWriter out;
  out.U32Big(magic);
  out.U64(kEnvelopeBytes + packed.size());
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

// Names of which each is told by what it shares with the one before; `between` comes after the
// lengths.
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
  OcdbtWriter(const fs::path& dir, const OcdbtSizes& sizes) : dir_(dir), sizes_(sizes) {
    fs::create_directories(dir_ / "d");
  }

  void Put(const std::string& key, std::span<const std::byte> value) override {
    if (key.empty() || key.size() > kMaxKeyBytes) {
      throw Error(ErrorCode::kInvalidArgument, Quoted(key) + " is no key of OCDBT");
    }
    Value stored;
    if (value.size() <= sizes_.max_inline_value_bytes) {
      stored.inlined.assign(reinterpret_cast<const char*>(value.data()), value.size());
    } else {
      stored.outside = Append(value);
    }
    if (!values_.emplace(key, std::move(stored)).second) {
      throw Error(ErrorCode::kInternal, Quoted(key) + " is there twice");
    }
  }

  void Finish() override {
    std::vector<Subtree> level = WriteLeaves();
    uint8_t height = 0;
    while (level.size() > 1) level = WriteInner(level, ++height);
    if (file_) file_->Close(paths_.back());
    file_.reset();
    WriteManifest(level.empty() ? std::nullopt : std::optional(level.front()), height);
  }

 private:
  Place Append(std::span<const std::byte> bytes) {
    if (!file_ || file_bytes_ >= sizes_.max_file_bytes) {
      if (file_) file_->Close(paths_.back());
      names_.push_back("d/" + RandomName());
      paths_.push_back(dir_ / names_.back());
      file_ = engine::CreateNewFile(paths_.back());
      file_bytes_ = 0;
    }
    engine::WriteAll(*file_, bytes, paths_.back());
    const Place place{names_.size() - 1, file_bytes_, bytes.size()};
    file_bytes_ += bytes.size();
    return place;
  }

  // The table of the data files that a node names, ascending; `numbers` tells where in it they are.
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
    const std::string object = Envelope(kNodeMagic, body);
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

  // Of at least two children each, or the tree would not end.
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
    // Children have their keys whole: nothing of them stands here.
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
    body.Text(RandomBytes(16));
    body.U8(0);  // one manifest
    body.Varint(sizes_.max_inline_value_bytes);
    body.Varint(sizes_.max_decoded_node_bytes);
    body.U8(4);      // arity of the tree of versions, log2
    body.Varint(1);  // zstd,
    body.U32(0);     // of its usual level
    std::map<size_t, size_t> numbers;
    PutFiles(root ? std::vector<Place>{root->at} : std::vector<Place>{}, &numbers, &body);
    body.Varint(1);  // version
    body.Varint(1);  // of generation 1
    body.U8(height);
    const uint64_t missing = ~uint64_t{0};
    body.Varint(0);  // data file
    body.Varint(root ? root->at.offset : missing);
    body.Varint(root ? root->at.length : missing);
    body.Varint(root ? root->n_keys : 0);
    body.Varint(root ? root->tree_bytes : 0);
    body.Varint(root ? root->outside_bytes : 0);
    body.U64(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count()));
    body.Varint(0);  // older versions
    engine::WriteFileAtomically(dir_ / "manifest.ocdbt", Envelope(kManifestMagic, body));
  }

  const fs::path dir_;
  const OcdbtSizes sizes_;
  std::map<std::string, Value> values_;
  std::vector<std::string> names_;  // of data files, from the directory on
  std::vector<fs::path> paths_;
  std::optional<engine::FileDescriptor> file_;  // the last of them
  uint64_t file_bytes_ = 0;
};

}  // namespace

std::unique_ptr<KeyValueWriter> WriteOcdbt(const fs::path& dir, const OcdbtSizes& sizes) {
  return std::make_unique<OcdbtWriter>(dir, sizes);
}

}  // namespace tandem::convert
