#include "engine/formats/gguf/gguf.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_bytes.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr size_t kMaxAxes = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxParts = 99'999;  // five digits in a file name
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitTensors = "split.tensors.count";

struct TensorType {
  uint32_t number;
  std::string_view name;
  bool is_read;
  Encoding encoding = Encoding::kPlain;
  DType dtype = DType::kF32;
};
// Tensor types found in model files, by their numbers in the format.
constexpr auto kTensorTypes = std::to_array<TensorType>({
    {0, "F32", true, Encoding::kPlain, DType::kF32},
    {1, "F16", true, Encoding::kPlain, DType::kF16},
    {2, "Q4_0", true, Encoding::kQ4_0},
    {3, "Q4_1", true, Encoding::kQ4_1},
    {6, "Q5_0", true, Encoding::kQ5_0},
    {7, "Q5_1", true, Encoding::kQ5_1},
    {8, "Q8_0", true, Encoding::kQ8_0},
    {9, "Q8_1", false},
    {10, "Q2_K", true, Encoding::kQ2_K},
    {11, "Q3_K", true, Encoding::kQ3_K},
    {12, "Q4_K", true, Encoding::kQ4_K},
    {13, "Q5_K", true, Encoding::kQ5_K},
    {14, "Q6_K", true, Encoding::kQ6_K},
    {15, "Q8_K", false},
    {16, "IQ2_XXS", true, Encoding::kIQ2_XXS},
    {17, "IQ2_XS", true, Encoding::kIQ2_XS},
    {18, "IQ3_XXS", true, Encoding::kIQ3_XXS},
    {19, "IQ1_S", true, Encoding::kIQ1_S},
    {20, "IQ4_NL", true, Encoding::kIQ4_NL},
    {21, "IQ3_S", true, Encoding::kIQ3_S},
    {22, "IQ2_S", true, Encoding::kIQ2_S},
    {23, "IQ4_XS", true, Encoding::kIQ4_XS},
    {24, "I8", false},
    {25, "I16", false},
    {26, "I32", false},
    {27, "I64", false},
    {28, "F64", true, Encoding::kPlain, DType::kF64},
    {29, "IQ1_M", true, Encoding::kIQ1_M},
    {30, "BF16", true, Encoding::kPlain, DType::kBF16},
    {34, "TQ1_0", true, Encoding::kTQ1_0},
    {35, "TQ2_0", true, Encoding::kTQ2_0},
    {39, "MXFP4", true, Encoding::kMXFP4},
    {40, "NVFP4", false},
    {41, "Q1_0", false},
});

std::string TypeName(uint32_t number) {
  for (const TensorType& type : kTensorTypes) {
    if (type.number == number) return std::string(type.name);
  }
  return "number " + std::to_string(number);
}

// For example "-00002-of-00003.gguf" for the second part of three.
std::string SplitEnding(int64_t part, int64_t count) {
  const auto five = [](int64_t n) {
    const std::string digits = std::to_string(n);
    return std::string(5 - std::min<size_t>(digits.size(), 5), '0') + digits;
  };
  return "-" + five(part + 1) + "-of-" + five(count) + ".gguf";
}

}  // namespace

// Walks the file once, front to back. Checks every length and count against the rest of the file
// before use.
class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}

  void Read() {
    if (!HasMagic(bytes_)) Fail("the file does not begin with 'GGUF'");
    at_ = kMagic.size();
    CheckVersion(Number<uint32_t>("the version"));
    const auto n_tensors = Number<uint64_t>("the number of tensors");
    const auto n_keys = Number<uint64_t>("the number of keys");
    if (n_tensors > kMaxTensors) FailCount("tensors", n_tensors, kMaxTensors);
    if (n_keys > kMaxKeys) FailCount("keys", n_keys, kMaxKeys);
    for (uint64_t i = 0; i < n_keys; ++i) ReadKey(i);
    const int64_t alignment = ReadAlignment();
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < n_tensors; ++i) offsets.push_back(ReadTensor(i));
    PlaceTensors(offsets, alignment);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kDataLoss, file_.name_ + ": " + what);
  }
  [[noreturn]] void FailCount(const char* what, uint64_t count, uint64_t limit) const {
    Fail(std::to_string(count) + " " + what + ", more than the limit of " + std::to_string(limit));
  }

  [[noreturn]] void FailLength(const std::string& what, uint64_t bytes, uint64_t limit) const {
    Fail(what + " has " + std::to_string(bytes) + " bytes, more than the limit of " +
         std::to_string(limit));
  }

  void CheckVersion(uint32_t version) const {
    if (version == 2 || version == 3) return;
    std::string what = "version " + std::to_string(version);
    if (version == 1) what = "version 1 (obsolete since 2023)";
    if (version != 0 && (version & 0xffff) == 0) what = "in big-endian byte order";
    throw Error(ErrorCode::kUnsupported,
                file_.name_ + ": GGUF " + what +
                    " is not supported; supported are versions 2 and 3, little-endian");
  }

  int64_t Product(int64_t a, int64_t b, const std::string& what) const {
    int64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out)) {
      Fail(what + " has a size that overflows: " + std::to_string(a) + " times " +
           std::to_string(b));
    }
    return out;
  }

  uint64_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> Take(uint64_t count, const std::string& what) {
    if (count > left()) {
      Fail(what + " needs " + std::to_string(count) + " bytes, but only " + std::to_string(left()) +
           " bytes of the file remain");
    }
    const auto taken = bytes_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return taken;
  }

  template <class T>
  T Number(const std::string& what) {
    return LoadNumber<T>(Take(sizeof(T), what).data());
  }

  std::string_view TakeName(const std::string& what) {
    const auto length = Number<uint64_t>(what);
    if (length > kMaxNameBytes) FailLength(what, length, kMaxNameBytes);
    const std::string_view name = GgufText(Take(length, what));
    if (!simdjson::validate_utf8(name.data(), name.size())) Fail(what + " is not UTF-8");
    if (name.empty()) Fail(what + " is empty");
    return name;
  }

  Type ReadType(const std::string& what) {
    const auto number = Number<uint32_t>(what);
    if (number > static_cast<uint32_t>(Type::kF64)) {
      Fail(what + " has the unknown type " + std::to_string(number));
    }
    return static_cast<Type>(number);
  }

  void ReadKey(uint64_t index) {
    const std::string_view key = TakeName("name of key " + std::to_string(index));
    const std::string what = "key " + Quoted(key);
    Value value{.type = ReadType(what), .item = Type::kU8, .count = 1, .bytes = {}};
    if (value.type == Type::kArray) {
      ReadArray(what, value);
    } else {
      const size_t begin = at_;
      Skip(value.type, what);
      value.bytes = bytes_.subspan(begin, at_ - begin);
      if (value.type == Type::kString) value.bytes = value.bytes.subspan(sizeof(uint64_t));
    }
    if (!file_.values_.emplace(key, value).second) Fail(what + " occurs twice");
  }

  // Skips a value that is not an array. Its content is checked when a caller asks for it.
  void Skip(Type type, const std::string& what) {
    Take(type == Type::kString ? Number<uint64_t>(what) : LeastBytesOf(type), what);
  }

  void ReadArray(const std::string& what, Value& value) {
    value.item = ReadType(what);
    value.count = Number<uint64_t>(what);
    const size_t begin = at_;
    SkipItems(value.item, value.count, /*depth=*/1, what);
    value.bytes = bytes_.subspan(begin, at_ - begin);
  }

  // Every item takes bytes of the file, so the file's size bounds the walk.
  void SkipItems(Type item, uint64_t count, int depth, const std::string& what) {
    if (count > kMaxArrayItems) {
      Fail(what + " has " + std::to_string(count) + " items, more than the limit of " +
           std::to_string(kMaxArrayItems));
    }
    if (item != Type::kString && item != Type::kArray) {
      Take(count * LeastBytesOf(item), what);
      return;
    }
    if (item == Type::kArray && depth == kMaxArrayDepth) {
      Fail(what + " nests arrays deeper than " + std::to_string(kMaxArrayDepth) + " levels");
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (item == Type::kString) {
        Skip(item, what);
      } else {
        const Type inner = ReadType(what);
        SkipItems(inner, Number<uint64_t>(what), depth + 1, what);
      }
    }
  }

  int64_t ReadAlignment() const {
    constexpr std::string_view kKey = "general.alignment";
    const int64_t alignment = file_.Int(kKey).value_or(kDefaultAlignment);
    if (alignment < 8 || alignment > 4096 ||
        !std::has_single_bit(static_cast<uint64_t>(alignment))) {
      file_.Broken(kKey, "must be a power of two in [8, 4096], got " + std::to_string(alignment));
    }
    return alignment;
  }

  // Reads one tensor description and returns the offset it claims.
  uint64_t ReadTensor(uint64_t index) {
    Tensor tensor;
    tensor.name = TakeName("name of tensor " + std::to_string(index));
    const std::string what = "tensor " + Quoted(tensor.name);
    const auto axes = Number<uint32_t>(what);
    if (axes < 1 || axes > kMaxAxes) {
      Fail(what + " has " + std::to_string(axes) + " axes; 1 to 4 are allowed");
    }
    int64_t elements = 1;
    for (uint32_t axis = 0; axis < axes; ++axis) {
      const auto size = Number<uint64_t>(what);
      if (size < 1 || !std::in_range<int64_t>(size)) {
        Fail(what + " has an axis of size " + std::to_string(size) +
             "; a size must be at least 1 and fit in 63 bits");
      }
      elements = Product(elements, static_cast<int64_t>(size), what);
      // The file lists the innermost axis first.
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    ReadTensorType(what, tensor);
    const auto offset = Number<uint64_t>(what);
    if (!file_.tensor_of_.emplace(tensor.name, file_.tensors_.size()).second) {
      Fail(what + " occurs twice");
    }
    int64_t bytes = 0;
    if (tensor.encoding == Encoding::kPlain) {
      bytes = Product(elements, static_cast<int64_t>(DTypeBytes(tensor.dtype)), what);
    } else {
      const int64_t block = BlockElements(tensor.encoding);
      if (tensor.shape.back() % block != 0) {
        Fail(what + " has rows of " + std::to_string(tensor.shape.back()) +
             " elements, which is not a multiple of the " + std::to_string(block) +
             " elements of a " + std::string(EncodingName(tensor.encoding)) + " block");
      }
      bytes = Product(elements / block, EncodedBlockBytes(tensor.encoding), what);
    }
    // The start of the data is not known yet, so this checks only the size.
    if (static_cast<uint64_t>(bytes) > bytes_.size()) {
      Fail(what + " needs " + std::to_string(bytes) + " bytes, more than the whole file of " +
           std::to_string(bytes_.size()));
    }
    tensor.data = bytes_.first(static_cast<size_t>(bytes));
    file_.tensors_.push_back(std::move(tensor));
    return offset;
  }

  void ReadTensorType(const std::string& what, Tensor& tensor) {
    const auto number = Number<uint32_t>(what);
    for (const TensorType& type : kTensorTypes) {
      if (type.number != number || !type.is_read) continue;
      tensor.encoding = type.encoding;
      tensor.dtype = type.dtype;
      return;
    }
    std::string supported;
    for (const TensorType& type : kTensorTypes) {
      if (type.is_read) supported += (supported.empty() ? "" : ", ") + std::string(type.name);
    }
    throw Error(ErrorCode::kUnsupported, file_.name_ + ": " + what + " is of type " +
                                             TypeName(number) + "; supported are " + supported);
  }

  // Points every tensor at its data. Checks that it is inside the file, aligned and without
  // overlap.
  void PlaceTensors(const std::vector<uint64_t>& offsets, int64_t alignment) {
    const auto step = static_cast<uint64_t>(alignment);
    const uint64_t begin = std::min<uint64_t>(RoundUp<uint64_t>(at_, step), bytes_.size());
    const std::span<const std::byte> data = bytes_.subspan(static_cast<size_t>(begin));
    std::vector<std::pair<uint64_t, size_t>> order;  // offset, tensor
    for (size_t i = 0; i < offsets.size(); ++i) {
      Tensor& tensor = file_.tensors_[i];
      const uint64_t offset = offsets[i];
      const std::string what = "tensor " + Quoted(tensor.name);
      if (offset % step != 0) {
        Fail(what + " begins at offset " + std::to_string(offset) +
             ", which is not a multiple of the alignment " + std::to_string(alignment));
      }
      if (offset > data.size() || tensor.data.size() > data.size() - offset) {
        Fail(what + " of " + std::to_string(tensor.data.size()) + " bytes at offset " +
             std::to_string(offset) + " exceeds the data section of " +
             std::to_string(data.size()) + " bytes");
      }
      tensor.data = data.subspan(static_cast<size_t>(offset), tensor.data.size());
      order.emplace_back(offset, i);
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 1; i < order.size(); ++i) {
      const Tensor& before = file_.tensors_[order[i - 1].second];
      if (order[i - 1].first + before.data.size() > order[i].first) {
        Fail("tensor " + Quoted(file_.tensors_[order[i].second].name) + " overlaps " +
             Quoted(before.name));
      }
    }
  }

  const std::span<const std::byte> bytes_;
  GgufFile& file_;
  size_t at_ = 0;
};

bool GgufFile::HasMagic(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() && GgufText(bytes.first(kMagic.size())) == kMagic;
}

GgufFile GgufFile::FromBytes(std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.name_ = name;
  Reader(bytes, file).Read();
  return file;
}

std::vector<std::filesystem::path> GgufFile::FindOtherParts(
    const std::filesystem::path& path) const {
  const int64_t count = Int(kSplitCount).value_or(1);
  if (count <= 1) return {};
  const std::string which = "is " + std::to_string(count) + ": the model is split into files; ";
  if (path.empty())
    Unsupported(kSplitCount, which + "give the path of the first file instead of its bytes");
  if (Int(kSplitNumber).value_or(0) != 0) {
    Unsupported(kSplitNumber,
                "is not 0: the model is split, and this is not its first file; open the first one");
  }
  const std::string name = path.filename().string(), ending = SplitEnding(0, count);
  if (count > kMaxParts || !name.ends_with(ending)) {
    Unsupported(kSplitCount, which + "the name of the first file must end in " + Quoted(ending) +
                                 ", with the others in the same folder");
  }
  std::vector<std::filesystem::path> parts;
  for (int64_t i = 1; i < count; ++i) {
    parts.push_back(path.parent_path() /
                    (name.substr(0, name.size() - ending.size()) + SplitEnding(i, count)));
    std::error_code absent;
    if (!std::filesystem::is_regular_file(parts.back(), absent)) {
      throw Error(ErrorCode::kNotFound, parts.back().string() +
                                            ": no such file; it is one of the " +
                                            std::to_string(count) + " parts of " + name_);
    }
  }
  return parts;
}

void GgufFile::AddPart(const GgufFile& part) {
  const auto check = [&](std::string_view key, int64_t expected) {
    const int64_t found = part.Int(key).value_or(0);
    if (found == expected) return;
    part.Broken(key, "is " + std::to_string(found) + ", must be " + std::to_string(expected) +
                         " in this part of " + name_);
  };
  check(kSplitCount, *Int(kSplitCount));
  check(kSplitNumber, n_parts_++);
  for (const Tensor& tensor : part.tensors_) {
    if (!tensor_of_.emplace(tensor.name, tensors_.size()).second) {
      throw Error(ErrorCode::kDataLoss, part.name_ + ": tensor " + Quoted(tensor.name) +
                                            " also occurs in another part of " + name_);
    }
    tensors_.push_back(tensor);
  }
}

void GgufFile::CheckParts() const {
  const auto expected = Int(kSplitTensors);
  if (n_parts_ == 1 || !expected || *expected == std::ssize(tensors_)) return;
  Broken(kSplitTensors, "is " + std::to_string(*expected) + ", but the parts have " +
                            std::to_string(tensors_.size()) + " tensors");
}

void GgufFile::Broken(std::string_view key, const std::string& what) const {
  throw Error(ErrorCode::kDataLoss, name_ + ": key " + Quoted(key) + " " + what);
}

void GgufFile::Unsupported(std::string_view key, const std::string& what) const {
  throw Error(ErrorCode::kUnsupported, name_ + ": key " + Quoted(key) + " " + what);
}

const GgufFile::Tensor* GgufFile::Find(std::string_view name) const {
  const auto found = tensor_of_.find(name);
  return found == tensor_of_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace tandem::engine
