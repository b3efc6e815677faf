#include "engine/formats/quantized/quantized_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/quantized/encoded_rows.h"
#include "engine/formats/quantized/quantization_settings.h"
#include "engine/formats/quantized/table_nibbles.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Method = QuantizationSettings::Method;
using Shape = std::vector<int64_t>;

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Joins the tensors of one method.
class Joiner {
 public:
  Joiner(const QuantizationSettings& settings, const std::string& model, StoredTensors* tensors)
      : settings_(settings), model_(model), tensors_(*tensors) {}

  void Join() {
    switch (settings_.method) {
      case Method::kFp8:
        ForEach(".weight", [&](const std::string& module) { JoinBytes(module); });
        break;
      case Method::kMxfp4:
        ForEach("_blocks", [&](const std::string& module) { JoinMxfp4(module); });
        break;
      case Method::kAwq:
        ForEach(".qweight", [&](const std::string& module) { JoinAwq(module); });
        break;
      case Method::kGptq:
        ForEach(".qweight", [&](const std::string& module) { JoinGptq(module); });
        break;
      case Method::kCompressed:
        ForEach(".weight_packed", [&](const std::string& module) { JoinCompressed(module); });
        ForEach(".weight", [&](const std::string& module) { JoinBytes(module); });
        break;
      case Method::kBitsAndBytes:
        ForEach(".weight", [&](const std::string& module) { JoinBitsAndBytes(module); });
        break;
    }
    // Quantised activations and caches are not computed, so their scales have no use.
    constexpr auto kUnused = std::to_array<std::string_view>(
        {".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale",
         ".input_scale_ub", ".weight_format"});
    std::erase_if(tensors_, [&](const auto& entry) {
      return std::any_of(kUnused.begin(), kUnused.end(), [&](std::string_view ending) {
        return std::string_view(entry.first).ends_with(ending);
      });
    });
  }

 private:
  template <class Take>
  void ForEach(std::string_view ending, const Take& take) {
    std::vector<std::string> modules;
    for (const auto& [name, tensor] : tensors_) {
      if (std::string_view(name).ends_with(ending)) {
        modules.push_back(name.substr(0, name.size() - ending.size()));
      }
    }
    for (const std::string& module : modules) take(module);
  }

  [[noreturn]] void Fail(const std::string& tensor, const std::string& what,
                         ErrorCode code = ErrorCode::kDataLoss) const {
    throw Error(code, model_ + ": tensor " + Quoted(tensor) + " " + what);
  }
  const ConstTensorView* Find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.view;
  }
  // Takes a tensor out of the map.
  ConstTensorView Take(const std::string& name, const std::string& of) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) Fail(name, "is missing beside " + Quoted(of));
    ConstTensorView view = std::move(found->second.view);
    tensors_.erase(found);
    return view;
  }
  void Require(const std::string& name, const ConstTensorView& view, const Shape& shape,
               const std::string& why) const {
    if (view.shape == shape) return;
    Fail(name,
         "has shape " + ShapeText(view.shape) + ", but " + why + " requires " + ShapeText(shape));
  }
  void RequireType(const std::string& name, const ConstTensorView& view, bool fits,
                   const std::string& expected) const {
    if (fits) return;
    Fail(name, "has type " + std::string(DTypeName(view.dtype)) + ", expected " + expected);
  }
  void RequireFloats(const std::string& name, const ConstTensorView& view) const {
    RequireType(name, view, IsFloat(view.dtype), "f32, bf16 or f16");
  }
  void RequireWords(const std::string& name, const ConstTensorView& view) const {
    RequireType(name, view, view.dtype == DType::kI32 && view.shape.size() == 2,
                "i32 with two axes");
  }
  void Put(const std::string& name, const ConstTensorView& main, Shape shape, Encoding encoding,
           std::shared_ptr<const EncodedRows> rows) {
    tensors_[name] = StoredTensor{.view = {main.data, DType::kF32, std::move(shape)},
                                  .encoding = encoding,
                                  .encoded = std::move(rows)};
  }

  // FP8 and int8 with scales of the tensor, of its rows, or of blocks.
  void JoinBytes(const std::string& module) {
    const std::string name = module + ".weight";
    const ConstTensorView* found = Find(name);
    const bool is_fp8 = found->dtype == DType::kF8E4M3;
    if (!is_fp8 && found->dtype != DType::kI8) return;
    if (found->shape.size() != 2) {
      Fail(name, "has shape " + ShapeText(found->shape) + "; quantised weights have two axes",
           ErrorCode::kUnsupported);
    }
    if (Find(module + ".weight_zero_point") != nullptr) {
      Fail(module + ".weight_zero_point", "is not supported for 8-bit weights",
           ErrorCode::kUnsupported);
    }
    // The name says "inverse", but programs multiply by both.
    const bool inverse = Find(module + ".weight_scale_inv") != nullptr;
    const std::string scale_name = module + (inverse ? ".weight_scale_inv" : ".weight_scale");
    ScaledBytes parts{.numbers = *found, .scales = Take(scale_name, name)};
    const int64_t n = parts.numbers.shape[0], k = parts.numbers.shape[1];
    RequireType(scale_name, parts.scales,
                IsFloat(parts.scales.dtype) || parts.scales.dtype == DType::kF8E8M0,
                "f32, bf16, f16 or f8_e8m0");
    const Shape& shape = parts.scales.shape;
    parts.block_columns = std::max<int64_t>(k, 1);
    const Shape blocks = {CeilDiv(n, settings_.block_rows), CeilDiv(k, settings_.block_columns)};
    if (parts.scales.elements() == 1 && shape.size() < 2) {
      parts.block_rows = std::max<int64_t>(n, 1);
    } else if (shape == blocks) {
      parts.block_rows = settings_.block_rows;
      parts.block_columns = settings_.block_columns;
    } else if (shape != Shape{n} && shape != Shape{n, 1}) {
      Fail(scale_name, "has shape " + ShapeText(shape) + "; " + Quoted(name) + " of shape " +
                           ShapeText(parts.numbers.shape) +
                           " needs one scale, one of each row, or " + ShapeText(blocks) +
                           " by 'weight_block_size'");
    }
    const ConstTensorView main = parts.numbers;
    Put(name, main, main.shape, is_fp8 ? Encoding::kFp8 : Encoding::kPacked8,
        MakeScaledBytes(std::move(parts)));
  }

  void JoinMxfp4(const std::string& module) {
    const std::string name = module + "_blocks", scale_name = module + "_scales";
    const ConstTensorView blocks = *Find(name), scales = Take(scale_name, name);
    RequireType(name, blocks, blocks.dtype == DType::kU8, "u8");
    RequireType(scale_name, scales, scales.dtype == DType::kU8, "u8");
    Shape shape = blocks.shape;
    if (shape.size() < 3 || shape.back() != 16) {
      Fail(name, "has shape " + ShapeText(shape) + "; expected [.., rows, groups, 16]");
    }
    shape.pop_back();
    Require(scale_name, scales, shape, Quoted(name));
    shape.back() = CheckedMul<int64_t>(shape.back(), 32, "columns of an MXFP4 tensor");
    const int64_t columns = shape.back();
    Put(name, blocks, std::move(shape), Encoding::kMxfp4Split,
        MakeSplitMxfp4({.blocks = blocks, .scales = scales, .columns = columns}));
  }

  int64_t GroupSize(int64_t columns) const {
    return settings_.group_size > 0 ? settings_.group_size : std::max<int64_t>(columns, 1);
  }
  static constexpr const char* kGroupSizeKey = "'quantization_config.group_size'";

  void JoinAwq(const std::string& module) {
    const std::string name = module + ".qweight";
    PackedIntegers parts{.order = PackedIntegers::Order::kAwq, .words = Take(name, module)};
    RequireWords(name, parts.words);
    parts.columns = parts.words.shape[0];
    parts.rows = CheckedMul<int64_t>(parts.words.shape[1], 8, "outputs of a quantised tensor");
    TakeScales(module, &parts);
    PutPacked(module, Encoding::kAwq4, std::move(parts));
  }

  void JoinGptq(const std::string& module) {
    const std::string name = module + ".qweight";
    PackedIntegers parts{.order = PackedIntegers::Order::kGptq,
                         .bits = settings_.bits,
                         .words = Take(name, module),
                         .zero_plus_one = settings_.zero_plus_one};
    RequireWords(name, parts.words);
    const int64_t per_word = 32 / settings_.bits;
    parts.columns =
        CheckedMul<int64_t>(parts.words.shape[0], per_word, "inputs of a quantised tensor");
    parts.rows = parts.words.shape[1];
    if (parts.rows % per_word != 0) {
      Fail(name, "has shape " + ShapeText(parts.words.shape) +
                     "; the outputs must be a multiple of " + std::to_string(per_word));
    }
    TakeScales(module, &parts);
    if (Find(module + ".g_idx") != nullptr) TakeGroups(module + ".g_idx", name, &parts);
    PutPacked(module, settings_.bits == 4 ? Encoding::kGptq4 : Encoding::kGptq8, std::move(parts));
  }

  // `scales` and `qzeros` of AWQ and GPTQ.
  void TakeScales(const std::string& module, PackedIntegers* parts) {
    const std::string name = module + ".qweight";
    parts->group_size = GroupSize(parts->columns);
    const int64_t groups = CeilDiv(parts->columns, parts->group_size);
    parts->scales = Take(module + ".scales", name);
    RequireFloats(module + ".scales", parts->scales);
    Require(module + ".scales", parts->scales, {groups, parts->rows}, kGroupSizeKey);
    parts->zeros = Take(module + ".qzeros", name);
    RequireWords(module + ".qzeros", parts->zeros);
    Require(module + ".qzeros", parts->zeros, {groups, parts->rows / (32 / parts->bits)},
            kGroupSizeKey);
  }

  // The group of each input, which act-order permutes.
  void TakeGroups(const std::string& name, const std::string& of, PackedIntegers* parts) {
    const ConstTensorView groups = Take(name, of);
    RequireType(name, groups, groups.dtype == DType::kI32, "i32");
    Require(name, groups, {parts->columns}, Quoted(of));
    const int64_t n_groups = CeilDiv(parts->columns, parts->group_size);
    bool in_order = true;
    for (int64_t i = 0; i < parts->columns; ++i) {
      int32_t group = 0;
      std::memcpy(&group, groups.data + i * static_cast<int64_t>(sizeof(group)), sizeof(group));
      if (group < 0 || group >= n_groups) {
        Fail(name, "names group " + std::to_string(group) + "; there are " +
                       std::to_string(n_groups) + " by " + kGroupSizeKey);
      }
      in_order = in_order && group == i / parts->group_size;
      parts->group_of.push_back(group);
    }
    if (in_order) parts->group_of.clear();
  }

  void JoinCompressed(const std::string& module) {
    const std::string name = module + ".weight_packed";
    const std::string shape_name = module + ".weight_shape";
    PackedIntegers parts{.order = PackedIntegers::Order::kCompressed,
                         .bits = settings_.bits,
                         .words = Take(name, module)};
    RequireWords(name, parts.words);
    const Shape shape = TakeShape(shape_name, name);
    const int64_t per_word = 32 / settings_.bits;
    parts.rows = shape[0];
    parts.columns = shape[1];
    Require(name, parts.words, {shape[0], CeilDiv(shape[1], per_word)}, Quoted(shape_name));
    parts.group_size = GroupSize(parts.columns);
    const int64_t groups = CeilDiv(parts.columns, parts.group_size);
    const std::string scale_name = module + ".weight_scale";
    parts.scales = Take(scale_name, name);
    RequireFloats(scale_name, parts.scales);
    Require(scale_name, parts.scales, {parts.rows, groups}, kGroupSizeKey);
    if (const std::string zero_name = module + ".weight_zero_point"; Find(zero_name) != nullptr) {
      parts.zeros = Take(zero_name, name);
      RequireWords(zero_name, parts.zeros);
      Require(zero_name, parts.zeros, {CeilDiv(parts.rows, per_word), groups}, kGroupSizeKey);
    }
    if (const std::string group_name = module + ".weight_g_idx"; Find(group_name) != nullptr) {
      TakeGroups(group_name, name, &parts);
    }
    PutPacked(module, settings_.bits == 4 ? Encoding::kPacked4 : Encoding::kPacked8,
              std::move(parts));
  }

  // A tensor of two integers: the unpacked shape.
  Shape TakeShape(const std::string& name, const std::string& of) {
    const ConstTensorView view = Take(name, of);
    RequireType(name, view, view.dtype == DType::kI64 || view.dtype == DType::kI32, "i64 or i32");
    Require(name, view, {2}, Quoted(of));
    Shape shape;
    for (int64_t i = 0; i < 2; ++i) {
      int64_t size = 0;
      if (view.dtype == DType::kI64) {
        std::memcpy(&size, view.data + i * 8, 8);
      } else {
        int32_t narrow = 0;
        std::memcpy(&narrow, view.data + i * 4, 4);
        size = narrow;
      }
      if (size < 0 || size > std::numeric_limits<int32_t>::max()) {
        Fail(name, "has the size " + std::to_string(size));
      }
      shape.push_back(size);
    }
    return shape;
  }

  void PutPacked(const std::string& module, Encoding encoding, PackedIntegers parts) {
    const ConstTensorView main = parts.words;
    Shape shape = {parts.rows, parts.columns};
    Put(module + ".weight", main, std::move(shape), encoding, MakePackedIntegers(std::move(parts)));
  }

  // int8 rows with `SCB`, or four bits with `absmax`.
  void JoinBitsAndBytes(const std::string& module) {
    const std::string name = module + ".weight";
    if (Find(name) == nullptr) return;  // a part of another weight
    const ConstTensorView main = *Find(name);
    if (Find(module + ".SCB") != nullptr) {
      RequireType(name, main, main.dtype == DType::kI8 && main.shape.size() == 2,
                  "i8 with two axes");
      ScaledBytes parts{.numbers = main, .scales = Take(module + ".SCB", name)};
      RequireFloats(module + ".SCB", parts.scales);
      Require(module + ".SCB", parts.scales, {main.shape[0]}, Quoted(name));
      parts.block_columns = std::max<int64_t>(main.shape[1], 1);
      parts.factor = 1.0f / 127;
      return Put(name, main, main.shape, Encoding::kPacked8, MakeScaledBytes(std::move(parts)));
    }
    if (Find(name + ".absmax") == nullptr) return;
    std::map<std::string, ConstTensorView, std::less<>> parts;
    for (auto at = tensors_.lower_bound(name + ".");
         at != tensors_.end() && at->first.starts_with(name + ".");) {
      parts.emplace(at->first.substr(name.size() + 1), at->second.view);
      at = tensors_.erase(at);
    }
    NibbleTensor nibbles = ReadNibbleTensor(model_, name, main, parts);
    Put(name, main, nibbles.shape, Encoding::kNf4, std::move(nibbles.rows));
  }

  const QuantizationSettings& settings_;
  const std::string& model_;
  StoredTensors& tensors_;
};

}  // namespace

bool MayBeQuantized(std::string_view config) {
  return config.find("quantization_config") != std::string_view::npos ||
         config.find("compression_config") != std::string_view::npos;
}

void JoinQuantized(const Json& config, const std::string& source, const std::string& model,
                   StoredTensors* tensors) {
  if (!config.is_object()) return;
  const Json* found = nullptr;
  const auto look = [&](const Json& object) {
    // The second name is that of old compressed-tensors files.
    for (const char* key : {"quantization_config", "compression_config"}) {
      const auto at = object.find(key);
      if (found == nullptr && at != object.end() && !at->is_null()) found = &*at;
    }
  };
  look(config);
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    look(*text);
  }
  if (found == nullptr) return;
  const QuantizationSettings settings = ParseQuantization(*found, source);
  Joiner(settings, model, tensors).Join();
}

}  // namespace tandem::engine
