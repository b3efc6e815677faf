#include "engine/formats/quantized/table_nibbles.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/quantized/encoded_rows.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Parts = std::map<std::string, ConstTensorView, std::less<>>;

constexpr int64_t kMaxAxis = int64_t{1} << 31;
constexpr size_t kMaxStateBytes = 1 << 16;

class NibbleReader {
 public:
  NibbleReader(const std::string& model, const std::string& name, const Parts& parts)
      : source_(model + ": tensor " + Quoted(name)), parts_(parts) {}

  NibbleTensor Read(const ConstTensorView& codes) {
    const Json state = ReadState();
    const int64_t block = JsonInt(state, "blocksize", 1, 1 << 20, source_);
    NibbleTensor tensor{.shape = ReadShape(state), .rows = nullptr};
    const int64_t elements = ElementCount(tensor.shape);
    if (codes.dtype != DType::kU8 || codes.elements() != (elements + 1) / 2) {
      Fail("has " + std::to_string(codes.elements()) + " numbers of type " +
           std::string(DTypeName(codes.dtype)) + "; shape " + ShapeText(tensor.shape) + " needs " +
           std::to_string((elements + 1) / 2) + " of type u8");
    }
    tensor.rows = MakeTableNibbles({.codes = codes,
                                    .table = Floats("quant_map", 16),
                                    .scales = ReadScales(state, (elements + block - 1) / block),
                                    .block = block,
                                    .columns = tensor.shape[1]});
    return tensor;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kDataLoss, source_ + " " + what);
  }

  Json ReadState() const {
    for (const auto& [name, view] : parts_) {
      if (!name.starts_with("quant_state.bitsandbytes__")) continue;
      if (view.dtype != DType::kU8 || view.bytes() > kMaxStateBytes) {
        Fail("has a " + Quoted(name) + " of another type than u8, or above 64 KiB");
      }
      Json state = ParseUntrustedJson({reinterpret_cast<const char*>(view.data), view.bytes()},
                                      source_ + " " + name);
      if (!state.is_object()) Fail("has a " + Quoted(name) + " that is no JSON object");
      return state;
    }
    Fail("has no 'quant_state.bitsandbytes__nf4'");
  }

  std::vector<int64_t> ReadShape(const Json& state) const {
    const auto found = state.find("shape");
    if (found == state.end() || !found->is_array() || found->size() != 2) {
      Fail("has a quant_state whose field 'shape' is no list of two sizes");
    }
    const Json sizes = {{"rows", (*found)[0]}, {"columns", (*found)[1]}};
    return {JsonInt(sizes, "rows", 1, kMaxAxis, source_ + " field 'shape'"),
            JsonInt(sizes, "columns", 1, kMaxAxis, source_ + " field 'shape'")};
  }

  const ConstTensorView& Part(std::string_view name, int64_t count) const {
    const auto found = parts_.find(name);
    if (found == parts_.end()) Fail("has no " + Quoted(name));
    if (found->second.elements() != count) {
      Fail("has " + std::to_string(found->second.elements()) + " numbers in " + Quoted(name) +
           ", expected " + std::to_string(count));
    }
    return found->second;
  }
  std::vector<float> Floats(std::string_view name, int64_t count) const {
    const ConstTensorView& view = Part(name, count);
    if (view.dtype != DType::kF32) Fail("has a " + Quoted(name) + " of another type than f32");
    std::vector<float> values(static_cast<size_t>(count));
    ConvertToF32(view, values);
    return values;
  }

  // The scales themselves may be codes of a table of 256 ("double quantisation").
  std::vector<float> ReadScales(const Json& state, int64_t count) const {
    if (!parts_.contains("nested_absmax")) return Floats("absmax", count);
    const int64_t block = JsonInt(state, "nested_blocksize", 1, 1 << 20, source_);
    const auto offset =
        static_cast<float>(JsonNumberOr(state, "nested_offset", 0, -1e30, 1e30, source_));
    const ConstTensorView& codes = Part("absmax", count);
    if (codes.dtype != DType::kU8) Fail("has an 'absmax' of another type than u8");
    const std::vector<float> table = Floats("nested_quant_map", 256);
    const std::vector<float> scales = Floats("nested_absmax", (count + block - 1) / block);
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto code = std::to_integer<size_t>(codes.data[i]);
      values[i] = table[code] * scales[i / static_cast<size_t>(block)] + offset;
    }
    return values;
  }

  const std::string source_;
  const Parts& parts_;
};

}  // namespace

NibbleTensor ReadNibbleTensor(const std::string& model, const std::string& name,
                              const ConstTensorView& codes, const Parts& parts) {
  return NibbleReader(model, name, parts).Read(codes);
}

}  // namespace tandem::engine
