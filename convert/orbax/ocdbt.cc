// Reads TensorStore's OCDBT. A manifest names the root of a B+tree, whose nodes and values are byte
// ranges of data files. Format: https://google.github.io/tensorstore/kvstore/ocdbt

#include <algorithm>
#include <limits>
#include <map>

#include "convert/orbax/byte_reader.h"
#include "convert/orbax/key_values.h"
#include "convert/orbax/zstd.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/crc32c.h"
#include "engine/io/mapped_file.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kManifestMagic = 0x0cdb3a2a;
constexpr uint32_t kNodeMagic = 0x0cdb20de;
constexpr size_t kEnvelopeBytes = 4 + 8 + 1 + 1 + 4;
constexpr uint64_t kMissing = std::numeric_limits<uint64_t>::max();
// Limits of TensorStore, and limits on the cost of a hostile tree.
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxArity = uint64_t{1} << 20;
constexpr size_t kMaxNodeBytes = size_t{1} << 28;
constexpr size_t kMaxTreeBytes = size_t{1} << 30;  // of all nodes, decoded
constexpr size_t kMaxKeys = size_t{1} << 22;

// A data file of a table: its path, and the prefix of that path for the tables of its nodes.
struct DataFile {
  std::string path;
  std::string base;
};

struct Reference {
  uint64_t file = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Reads a column of numbers; the format stores lists column by column.
std::vector<uint64_t> Column(ByteReader& in, uint64_t n, uint64_t most, const char* name) {
  // Each number takes at least one byte.
  if (n > in.left())
    in.Broken(std::string(name) + ": " + std::to_string(n) +
              " entries do not fit in the remaining " + std::to_string(in.left()) + " bytes");
  std::vector<uint64_t> column(static_cast<size_t>(n));
  for (uint64_t& value : column) value = in.VarintUpTo(most, name);
  return column;
}

std::vector<Reference> References(ByteReader& in, uint64_t n, size_t n_files) {
  std::vector<Reference> references(static_cast<size_t>(n));
  if (n == 0) return references;
  const auto files = Column(in, n, kMissing, "a data file's number");
  const auto offsets = Column(in, n, kMissing, "an offset");
  const auto lengths = Column(in, n, kMissing, "a length");
  for (size_t i = 0; i < references.size(); ++i) {
    references[i] = {files[i], offsets[i], lengths[i]};
    const bool is_missing = offsets[i] == kMissing && lengths[i] == kMissing;
    if (!is_missing && files[i] >= n_files) {
      in.Broken("refers to data file " + std::to_string(files[i]) + " of " +
                std::to_string(n_files));
    }
  }
  return references;
}

// Reads names that share a prefix with the name before.
std::vector<std::string> PrefixCoded(ByteReader& in, const std::vector<uint64_t>& prefix_lengths,
                                     const std::vector<uint64_t>& suffix_lengths) {
  std::vector<std::string> names(suffix_lengths.size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) {
      const uint64_t prefix = prefix_lengths[i - 1];
      if (prefix > names[i - 1].size())
        in.Broken("a name shares a prefix longer than the previous name");
      names[i] = names[i - 1].substr(0, static_cast<size_t>(prefix));
    }
    names[i] += in.Text(suffix_lengths[i]);
    if (names[i].size() > kMaxKeyBytes) in.Broken("a name has more than 65535 bytes");
  }
  return names;
}

std::vector<DataFile> DataFiles(ByteReader& in, const std::string& base) {
  const uint64_t n = in.VarintUpTo(kMaxArity, "the number of data files");
  if (n == 0) return {};
  const auto prefixes = Column(in, n - 1, kMaxKeyBytes, "a path's beginning");
  const auto suffixes = Column(in, n, kMaxKeyBytes, "a path's end");
  const auto bases = Column(in, n, kMaxKeyBytes, "a path's base");
  const std::vector<std::string> paths = PrefixCoded(in, prefixes, suffixes);
  std::vector<DataFile> files;
  files.reserve(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    if (bases[i] > paths[i].size()) in.Broken("a path's base is longer than the path");
    files.push_back({base + paths[i], base + paths[i].substr(0, static_cast<size_t>(bases[i]))});
  }
  return files;
}

// Body of an object; `bytes` may point into `decoded`.
struct Body {
  std::vector<std::byte> decoded;
  std::span<const std::byte> bytes;
};

Body OpenEnvelope(std::span<const std::byte> object, uint32_t magic, const std::string& what) {
  ByteReader in(object, what);
  if (object.size() < kEnvelopeBytes)
    in.Broken("the object has only " + std::to_string(object.size()) + " bytes,");
  if (in.U32Big() != magic) in.Broken("the magic number is not the expected one of OCDBT");
  if (in.U64() != object.size()) in.Broken("the recorded length differs from the actual length");
  if (const uint64_t version = in.Varint(); version != 0) {
    throw Error(ErrorCode::kUnsupported, what + ": OCDBT format version " +
                                             std::to_string(version) + " is not supported, only 0");
  }
  const uint64_t compression = in.Varint();
  if (compression > 1) {
    throw Error(ErrorCode::kUnsupported,
                what + ": compression method " + std::to_string(compression) +
                    " is not supported; supported are none (0) and zstd (1)");
  }
  ByteReader end(object.last(4), what);
  if (engine::Crc32c(0, object.first(object.size() - 4)) != end.U32()) {
    in.Broken("the object is damaged: its CRC-32C does not match");
  }
  if (in.left() < 4) in.Broken("the object ends too early");
  Body body;
  body.bytes = in.Bytes(in.left() - 4);
  if (compression == 1) {
    body.decoded = DecodeZstdUpTo(body.bytes, kMaxNodeBytes, what);
    body.bytes = body.decoded;
  }
  return body;
}

class Ocdbt : public KeyValues {
 public:
  explicit Ocdbt(const fs::path& dir) : dir_(dir) { ReadManifest("manifest.ocdbt"); }

  std::optional<StoredBytes> Find(const std::string& key) const override {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  std::vector<std::string> Keys() const override {
    std::vector<std::string> keys;
    keys.reserve(values_.size());
    for (const auto& [key, value] : values_) keys.push_back(key);
    return keys;
  }

 private:
  struct Subtree {
    Reference at;
    uint8_t height = 0;
    std::string prefix;  // of all its keys
  };

  void ReadManifest(const std::string& name) {
    const std::string what = (dir_ / name).string();
    const auto file = engine::MappedFile::Open(dir_ / name);
    const Body body = OpenEnvelope(file->bytes(), kManifestMagic, what);
    ByteReader in(body.bytes, what);
    in.Bytes(16);  // uuid
    const uint8_t kind = in.U8();
    if (kind > 1) in.Broken("the manifest kind " + std::to_string(kind) + " is unknown");
    in.Varint();                     // most bytes of an inlined value
    in.Varint();                     // most bytes of a decoded node
    in.U8();                         // arity of the tree of versions
    if (in.Varint() == 1) in.U32();  // zstd level
    if (kind == 1 && name == "manifest.ocdbt") return ReadManifest(NewestNumbered());
    const std::vector<DataFile> files = DataFiles(in, "");
    const uint64_t n = in.VarintUpTo(kMaxArity, "the number of versions");
    if (n == 0) in.Broken("the manifest contains no version");
    Column(in, n, kMissing, "a generation");
    const auto heights = in.Bytes(n);
    const std::vector<Reference> roots = References(in, n, files.size());
    const Subtree root{roots.back(), static_cast<uint8_t>(heights.back()), ""};
    if (root.at.offset == kMissing && root.at.length == kMissing) return;  // empty database
    ReadNode(root, files);
  }

  // Writers on storage without atomic replace make a new numbered manifest for each state.
  std::string NewestNumbered() const {
    constexpr std::string_view kName = "manifest.";
    std::string newest;
    for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
      const std::string name = entry.path().filename().string();
      const bool is_numbered =
          name.size() == kName.size() + 16 && name.starts_with(kName) &&
          name.find_first_not_of("0123456789abcdef", kName.size()) == std::string::npos;
      if (is_numbered && name > newest) newest = name;
    }
    if (newest.empty()) {
      throw Error(ErrorCode::kDataLoss,
                  dir_.string() + ": manifest.ocdbt refers to numbered manifests, but none exists");
    }
    return newest;
  }

  StoredBytes Load(const Reference& at, const std::vector<DataFile>& files,
                   const std::string& what) {
    if (at.file >= files.size()) {
      throw Error(ErrorCode::kDataLoss, what + ": refers to a data file that it does not list");
    }
    const auto file = Open(files[static_cast<size_t>(at.file)].path, what);
    const auto bytes = file->bytes();
    if (at.offset > bytes.size() || at.length > bytes.size() - at.offset) {
      throw Error(ErrorCode::kDataLoss,
                  what + ": refers to " + std::to_string(at.length) + " bytes at offset " +
                      std::to_string(at.offset) + " of " + Quoted(file->path().string()) +
                      ", which has " + std::to_string(bytes.size()) + " bytes");
    }
    return {file, bytes.subspan(static_cast<size_t>(at.offset), static_cast<size_t>(at.length)),
            file.get()};
  }

  std::shared_ptr<const engine::MappedFile> Open(const std::string& path, const std::string& what) {
    auto& file = files_[path];
    if (file != nullptr) return file;
    const fs::path relative(path);
    const bool leaves = relative.is_absolute() || path.find('\0') != std::string::npos ||
                        std::find(relative.begin(), relative.end(), "..") != relative.end();
    if (leaves) {
      throw Error(ErrorCode::kDataLoss,
                  what + ": refers to " + Quoted(path) + ", which is outside the checkpoint");
    }
    std::error_code refused;
    if (!fs::is_regular_file(dir_ / relative, refused)) {
      throw Error(ErrorCode::kDataLoss,
                  what + ": refers to " + Quoted(path) + ", which is not a file");
    }
    file = engine::MappedFile::Open(dir_ / relative);
    return file;
  }

  // The recursion ends because a child is lower than its parent. Keys must ascend, so no part is
  // walked twice.
  void ReadNode(const Subtree& tree, const std::vector<DataFile>& files) {
    const std::string what = dir_.string() + ": node at " + std::to_string(tree.at.offset) +
                             (tree.at.file < files.size()
                                  ? " of " + Quoted(files[static_cast<size_t>(tree.at.file)].path)
                                  : std::string());
    const StoredBytes stored = Load(tree.at, files, what);
    const Body body = OpenEnvelope(stored.bytes, kNodeMagic, what);
    tree_bytes_ += body.bytes.size();
    ByteReader in(body.bytes, what);
    if (tree_bytes_ > kMaxTreeBytes) in.Broken("the tree has more than 1 GiB of nodes");
    if (in.U8() != tree.height)
      in.Broken("the node's height differs from the height in its parent");
    const std::vector<DataFile> own = DataFiles(in, files[static_cast<size_t>(tree.at.file)].base);
    const uint64_t n = in.VarintUpTo(kMaxArity, "the number of entries");
    if (n == 0) in.Broken("the node is empty");
    const auto prefixes = Column(in, n - 1, kMaxKeyBytes, "a key's shared prefix length");
    const auto suffixes = Column(in, n, kMaxKeyBytes, "a key's suffix length");
    if (tree.height > 0) return ReadInner(tree, in, own, prefixes, suffixes);
    ReadLeaf(tree.prefix, in, own, PrefixCoded(in, prefixes, suffixes), what);
  }

  void ReadInner(const Subtree& tree, ByteReader& in, const std::vector<DataFile>& files,
                 const std::vector<uint64_t>& prefixes, const std::vector<uint64_t>& suffixes) {
    const uint64_t n = suffixes.size();
    const auto common = Column(in, n, kMaxKeyBytes, "the common prefix length of keys");
    const std::vector<std::string> keys = PrefixCoded(in, prefixes, suffixes);
    const std::vector<Reference> children = References(in, n, files.size());
    for (size_t i = 0; i < children.size(); ++i) {
      if (common[i] > keys[i].size()) in.Broken("a common prefix is longer than its key");
      ReadNode({children[i], static_cast<uint8_t>(tree.height - 1),
                tree.prefix + keys[i].substr(0, static_cast<size_t>(common[i]))},
               files);
    }
  }

  void ReadLeaf(const std::string& prefix, ByteReader& in, const std::vector<DataFile>& files,
                const std::vector<std::string>& keys, const std::string& what) {
    const uint64_t n = keys.size();
    const auto lengths = Column(in, n, kMissing, "a value's length");
    const auto kinds = in.Bytes(n);
    const auto is_outside = [&](size_t i) { return kinds[i] == std::byte{1}; };
    std::vector<size_t> outside;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (kinds[i] > std::byte{1}) in.Broken("a value has an unknown kind");
      if (is_outside(i)) outside.push_back(i);
    }
    const uint64_t m = outside.size();
    const auto in_file = Column(in, m, kMissing, "a data file's number");
    const auto offsets = Column(in, m, kMissing, "an offset");
    for (size_t i = 0, j = 0; i < keys.size(); ++i) {
      if (is_outside(i)) {
        Add(prefix + keys[i], Load({in_file[j], offsets[j], lengths[i]}, files, what), in);
        ++j;
        continue;
      }
      const auto part = in.Bytes(lengths[i]);
      const auto copy = std::make_shared<const std::vector<std::byte>>(part.begin(), part.end());
      Add(prefix + keys[i], {copy, *copy, nullptr}, in);
    }
  }

  void Add(const std::string& key, StoredBytes value, const ByteReader& in) {
    if (!values_.empty() && values_.rbegin()->first >= key)
      in.Broken("the keys are not in ascending order");
    if (values_.size() == kMaxKeys)
      in.Broken("the database has more than " + std::to_string(kMaxKeys) +
                " keys, which is the limit");
    if (key.size() > kMaxKeyBytes) in.Broken("a key has more than 65535 bytes");
    values_.emplace_hint(values_.end(), key, std::move(value));
  }

  fs::path dir_;
  std::map<std::string, std::shared_ptr<const engine::MappedFile>> files_;
  std::map<std::string, StoredBytes> values_;
  size_t tree_bytes_ = 0;
};

}  // namespace

std::unique_ptr<KeyValues> OpenOcdbt(const fs::path& dir) { return std::make_unique<Ocdbt>(dir); }

}  // namespace tandem::convert
