// The tensors of a quantised checkpoint: a JSON object, a zero byte, and bytes that fill the
// tensors in turn. The object has quantization_config and `tensors`: {"a.weight": ["U8", [4, 4]]}.
// A text in place of the shape is the tensor's bytes. Every joined tensor decodes to its last
// number, by rows and by groups, and so does every slice of a stack.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/quantized/quantized_tensors.h"
#include "engine/formats/safetensors/safetensors_codes.h"
#include "engine/io/json.h"
#include "engine/model/find_weight.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/strangers_file.h"

namespace {

using namespace tandem::engine;
using tandem::Error;
using tandem::ErrorCode;
using Json = nlohmann::ordered_json;

constexpr int64_t kMaxBytes = 1 << 20;

class Checkpoint {
 public:
  // Each tensor has an allocation of exactly its bytes, so that a sanitizer sees reads beyond it.
  Checkpoint(const Json& json, std::string_view filling) : filling_(filling) {
    const auto listed = json.find("tensors");
    if (listed == json.end() || !listed->is_object()) return;
    for (const auto& [name, entry] : listed->items()) {
      if (entry.is_array() && entry.size() == 2 && entry[0].is_string()) Add(name, entry);
    }
  }

  StoredTensors tensors;

 private:
  void Add(const std::string& name, const Json& entry) {
    DType dtype = DType::kF32;
    for (const DTypeCode& code : kDTypeCodes) {
      if (entry[0] == code.code) dtype = code.dtype;
    }
    if (entry[1].is_string()) {
      const auto text = entry[1].get<std::string>();
      Put(name, dtype, {static_cast<int64_t>(text.size() / DTypeBytes(dtype))}, text);
      return;
    }
    std::vector<int64_t> shape;
    for (const Json& axis : entry[1]) {
      if (!axis.is_number_integer()) return;
      shape.push_back(axis.get<int64_t>());
    }
    Put(name, dtype, std::move(shape), filling_);
  }

  void Put(const std::string& name, DType dtype, std::vector<int64_t> shape,
           std::string_view filling) {
    const int64_t count = ElementCount(shape);
    const auto width = static_cast<int64_t>(DTypeBytes(dtype));
    if (count > left_ / width) throw Error(ErrorCode::kInvalidArgument, "too large for the fuzzer");
    left_ -= count * width;
    std::vector<std::byte>& bytes = bytes_.emplace_back(static_cast<size_t>(count * width));
    for (size_t i = 0; i < bytes.size() && !filling.empty(); ++i) {
      bytes[i] = static_cast<std::byte>(filling[i % filling.size()]);
    }
    tensors[name].view = {bytes.data(), dtype, std::move(shape)};
  }

  const std::string_view filling_;
  int64_t left_ = kMaxBytes;
  std::deque<std::vector<std::byte>> bytes_;
};

void UseGroups(const StoredTensor& tensor) {
  const int64_t columns = tensor.view.shape.back();
  const int bits = tensor.encoded->ExactBits();
  const bool split = tensor.encoding == Encoding::kMxfp4Split;
  if (columns == 0 || (bits == 0 && !split)) return;
  Require(columns % 32 == 0 && (split || bits == 4 || bits == 8));
  const int64_t rows = tensor.view.elements() / columns;
  std::vector<float> values(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    tensor.encoded->Read(row, 1, 1, values.data());
    for (int64_t i = 0; i < columns; ++i) {
      EncodedGroup group;
      if (i % 32 == 0) tensor.encoded->ReadGroup(row, i / 32, &group);
      if (i % 32 != 0) continue;
      const float value = group.scale * static_cast<float>(group.q[0]);
      Require(std::memcmp(&value, &values[static_cast<size_t>(i)], sizeof(value)) == 0 ||
              value != value);
      for (const int8_t q : group.q) Require(split || bits == 8 || (q >= -8 && q <= 7));
    }
  }
}

// Halves of the slices of a stack, and every second row of them.
void UseSlices(const std::string& name, const StoredTensor& stack) {
  const std::vector<int64_t>& shape = stack.view.shape;
  for (const bool transposed : {false, true}) {
    const int64_t rows = shape[transposed ? 2 : 1], columns = shape[transposed ? 1 : 2];
    for (const int64_t step : {1, 2}) {
      const WeightSpec spec{
          .name = "w", .source_shape = {rows / 2, columns}, .n = rows / 2, .k = columns};
      if (spec.n == 0 || spec.k == 0) continue;  // weights have both
      ReadStrangersFile([&] {
        const StoredTensor part = PartOf(stack,
                                         {.tensor = name,
                                          .index = shape[0] - 1,
                                          .first_row = step == 1 ? rows - spec.n : 1,
                                          .row_step = step,
                                          .transposed = transposed},
                                         spec, "fuzz");
        Require(DecodeTensor(part).size() == static_cast<size_t>(spec.n * spec.k));
      });
    }
  }
}

bool IsReadable(const StoredTensor& tensor) {
  const DType dtype = tensor.view.dtype;
  return tensor.encoded != nullptr || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16 || dtype == DType::kF64;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return MutateJsonText(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  ReadStrangersFile([&] {
    const Json json = ParseUntrustedJson(all.substr(0, end), "fuzz");
    if (!json.is_object()) return;
    Checkpoint checkpoint(json, all.substr(std::min(end + 1, size)));
    JoinQuantized(json, "config.json", "fuzz", &checkpoint.tensors);
    for (const auto& [name, tensor] : checkpoint.tensors) {
      if (!IsReadable(tensor) || tensor.view.elements() > 4 * kMaxBytes) continue;
      Require(DecodeTensor(tensor).size() == static_cast<size_t>(tensor.view.elements()));
      if (tensor.encoded != nullptr) UseGroups(tensor);
      if (tensor.view.shape.size() == 3) UseSlices(name, tensor);
    }
  });
  return 0;
}
