#include "engine/formats/quantized/quantization_settings.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Method = QuantizationSettings::Method;

constexpr int64_t kMaxGroup = 1 << 18;

[[noreturn]] void Refuse(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, source + ": unsupported: " + what);
}

struct MethodName {
  std::string_view name;
  Method method;
};
constexpr auto kMethods = std::to_array<MethodName>({{"fp8", Method::kFp8},
                                                     {"fbgemm_fp8", Method::kFp8},
                                                     {"modelopt", Method::kFp8},
                                                     {"mxfp4", Method::kMxfp4},
                                                     {"awq", Method::kAwq},
                                                     {"gptq", Method::kGptq},
                                                     {"compressed-tensors", Method::kCompressed},
                                                     {"bitsandbytes", Method::kBitsAndBytes}});

Method MethodOf(const Json& config, const std::string& source) {
  const std::string name = JsonStringOr(config, "quant_method", "", source);
  std::string known;
  for (const MethodName& method : kMethods) {
    if (method.name == name) return method.method;
    known += (known.empty() ? "" : ", ") + std::string(method.name);
  }
  Refuse(source,
         "'quantization_config.quant_method': " + Quoted(name) + "; supported are " + known);
}

// -1 stands for one group of all inputs.
int64_t ReadGroupSize(const Json& config, int64_t fallback, const std::string& source) {
  const int64_t size = JsonIntOr(config, "group_size", fallback, -1, kMaxGroup, source);
  if (size == 0) throw Error(ErrorCode::kDataLoss, source + ": field 'group_size' must not be 0");
  return size < 0 ? 0 : size;
}

void ReadBlockSize(const Json& config, const char* field, const std::string& source,
                   QuantizationSettings* settings) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return;
  if (!found->is_array() || found->size() != 2) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field '" + field + "' must be a list of two sizes");
  }
  const Json sizes = {{"rows", (*found)[0]}, {"columns", (*found)[1]}};
  const std::string where = source + ": field '" + field + "'";
  settings->block_rows = JsonInt(sizes, "rows", 1, kMaxGroup, where);
  settings->block_columns = JsonInt(sizes, "columns", 1, kMaxGroup, where);
}

int ReadBits(const Json& config, const char* field, bool eight, const std::string& source) {
  const auto bits = static_cast<int>(JsonIntOr(config, field, 4, 1, 64, source));
  if (bits != 4 && !(eight && bits == 8)) {
    Refuse(source, std::string("'") + field + "': " + std::to_string(bits) + "; supported are 4" +
                       (eight ? " and 8" : ""));
  }
  return bits;
}

void ReadAwq(const Json& config, const std::string& source, QuantizationSettings* settings) {
  settings->bits = ReadBits(config, "bits", false, source);
  settings->group_size = ReadGroupSize(config, 128, source);
  const std::string version =
      JsonStringOr(config, "version", JsonStringOr(config, "format", "gemm", source), source);
  if (version != "gemm" && version != "GEMM") {
    Refuse(source, "'version': " + Quoted(version) + " of AWQ; supported is gemm");
  }
}

void ReadGptq(const Json& config, const std::string& source, QuantizationSettings* settings) {
  settings->bits = ReadBits(config, "bits", true, source);
  settings->group_size = ReadGroupSize(config, 128, source);
  const std::string format = JsonStringOr(config, "checkpoint_format",
                                          JsonStringOr(config, "format", "gptq", source), source);
  if (format != "gptq" && format != "gptq_v2") {
    Refuse(source, "'checkpoint_format': " + Quoted(format) + "; supported are gptq, gptq_v2");
  }
  settings->zero_plus_one = format == "gptq";
}

// All groups must agree, since `targets` choose modules by patterns that we do not read.
void ReadCompressed(const Json& config, const std::string& source, QuantizationSettings* settings) {
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object() || groups->empty()) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'config_groups' must be an object");
  }
  const Json* first = nullptr;
  for (const auto& [name, group] : groups->items()) {
    const std::string where = source + ": field " + Quoted("config_groups." + name + ".weights");
    const auto weights = group.is_object() ? group.find("weights") : group.end();
    if (!group.is_object() || weights == group.end() || !weights->is_object()) {
      throw Error(ErrorCode::kDataLoss, where + " must be an object");
    }
    const std::string type = JsonStringOr(*weights, "type", "int", where);
    if (type != "int" && type != "float") Refuse(where, "'type': " + Quoted(type));
    if (type == "int") {
      settings->bits = ReadBits(*weights, "num_bits", true, where);
    } else if (JsonIntOr(*weights, "num_bits", 8, 1, 64, where) != 8) {
      Refuse(where, "floats of another size than 8 bits");
    }
    if (first == nullptr) {
      settings->group_size = ReadGroupSize(*weights, -1, where);
      ReadBlockSize(*weights, "block_structure", where, settings);
      first = &*weights;
      continue;
    }
    for (const char* field : {"num_bits", "type", "group_size", "block_structure"}) {
      if (weights->value(field, Json()) != first->value(field, Json())) {
        Refuse(where, std::string("'") + field + "' differs between groups");
      }
    }
  }
}

}  // namespace

QuantizationSettings ParseQuantization(const Json& config, const std::string& source) {
  if (!config.is_object()) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'quantization_config' must be an object");
  }
  QuantizationSettings settings;
  settings.method = MethodOf(config, source);
  switch (settings.method) {
    case Method::kFp8:
      ReadBlockSize(config, "weight_block_size", source, &settings);
      break;
    case Method::kMxfp4:
    case Method::kBitsAndBytes:
      break;
    case Method::kAwq:
      ReadAwq(config, source, &settings);
      break;
    case Method::kGptq:
      ReadGptq(config, source, &settings);
      break;
    case Method::kCompressed:
      ReadCompressed(config, source, &settings);
      break;
  }
  return settings;
}

}  // namespace tandem::engine
