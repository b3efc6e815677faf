// Writes GGUF files: weights, configuration and tokenizer in one file.

#include "convert/formats/gguf/gguf.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "convert/formats/gguf/gguf_config.h"
#include "convert/formats/gguf/gguf_tokenizer.h"
#include "convert/formats/gguf/gguf_tolerance.h"
#include "convert/tensors/source_config.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/model_dir.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

using engine::DType;
using engine::ModelConfig;

uint32_t FileTypeOf(GgufNumbers numbers) {
  switch (numbers) {
    case GgufNumbers::kF32:
      return 0;
    case GgufNumbers::kF16:
      return 1;
    case GgufNumbers::kQ4_0:
      return 2;
    case GgufNumbers::kQ8_0:
      return 7;
    case GgufNumbers::kBF16:
      return 32;
  }
  TANDEM_CHECK(false);
}

// Returns `general.file_type` in the format's numbering: the asked-for type, else that of most
// elements.
uint32_t FileType(const std::string& dtype, const std::vector<GgufTensor>& tensors) {
  if (!dtype.empty()) return FileTypeOf(GgufNumbersOf(dtype));
  std::map<GgufNumbers, int64_t> elements;
  for (const GgufTensor& tensor : tensors) {
    elements[tensor.info.numbers] += engine::ElementCount(tensor.info.shape);
  }
  const auto most =
      std::max_element(elements.begin(), elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return FileTypeOf(most->first);
}

void CheckWritten(const ModelSource& source, const ModelConfig& config,
                  const std::filesystem::path& path, std::vector<std::string>* warnings) {
  const auto written = OpenModelFiles(path, {});
  const std::string difference = FirstDifference(config, ConfigOf(*written).config);
  if (!difference.empty()) {
    throw Error(ErrorCode::kUnsupported, source.name() + ": GGUF cannot represent the model's " +
                                             difference + "; convert the model to hf or native");
  }
  CompareTokenizers(source, *written, warnings);
}

// Elements of each side held at a time, unless one row is longer.
constexpr int64_t kComparePieceElements = 1 << 20;

// Compares row by row in the file's order; a transposed tensor is compared whole.
bool IsNear(const GgufTensor& tensor, const engine::ConstTensorView& source,
            const engine::StoredTensor& stored) {
  std::vector<int64_t> shape = stored.view.shape;
  int64_t n_rows = stored.rows();
  if (std::ssize(tensor.rows) > source.shape.front() && std::ssize(tensor.rows) == n_rows) {
    shape.front() = n_rows = source.shape.front();  // the file repeats rows behind them
  }
  if (shape != source.shape) return false;
  const int64_t row_elements = std::max<int64_t>(stored.row_elements(), 1);
  GgufTolerance tolerance(tensor, stored.rows());
  const int64_t together = tolerance.rows_together();
  const int64_t at_once =
      stored.transposed
          ? stored.rows()
          : std::max<int64_t>(1, kComparePieceElements / row_elements / together) * together;
  std::vector<float> wanted, is;
  for (int64_t row = 0; row < n_rows; row += at_once) {
    const int64_t count = std::min(at_once, n_rows - row);
    wanted.resize(static_cast<size_t>(count * row_elements));
    const int64_t skipped = row * row_elements * static_cast<int64_t>(DTypeBytes(source.dtype));
    engine::ConvertToF32({source.data + skipped, source.dtype, {count * row_elements}}, wanted);
    if (!tensor.factors.empty()) MultiplyRows(tensor, row, wanted);
    if (stored.transposed) {
      is = engine::DecodeTensor(stored);
    } else {
      is.resize(wanted.size());
      engine::ReadRows(stored, row, count, is.data());
    }
    if (!tolerance.IsNear(wanted, row, is)) return false;
  }
  return true;
}

}  // namespace

GgufError GgufReport::Total() const {
  GgufError total;
  for (const GgufTensor& tensor : tensors) total.Add(tensor.error);
  return total;
}

std::string GgufReport::Json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::vector<GgufError> errors;  // by tensor of the file
  for (const GgufTensor& tensor : tensors) {
    errors.resize(std::max(errors.size(), tensor.file_tensor + 1));
    errors[tensor.file_tensor].Add(tensor.error);
  }
  for (const GgufTensor& tensor : tensors) {
    if (tensor.expert > 0 || tensor.half > 0) continue;
    const GgufError& error = errors[tensor.file_tensor];
    list.push_back({{"name", tensor.info.name},
                    {"type", GgufNumbersName(tensor.info.numbers)},
                    {"max_abs", error.max_abs},
                    {"relative_rms", error.RelativeRms()}});
  }
  const GgufError total = Total();
  const auto worst = std::max_element(
      tensors.begin(), tensors.end(),
      [](const auto& a, const auto& b) { return a.error.RelativeRms() < b.error.RelativeRms(); });
  return nlohmann::ordered_json{{"max_abs", total.max_abs},
                                {"relative_rms", total.RelativeRms()},
                                {"worst_tensor", worst->info.name},
                                {"worst_relative_rms", worst->error.RelativeRms()},
                                {"warnings", warnings},
                                {"tensors", std::move(list)}}
      .dump();
}

GgufReport WriteGgufFile(const WriteContext& context, const std::string& name,
                         const std::string& dtype) {
  const ModelSource& source = context.source;
  const ModelConfig config = ConfigOf(source).config;
  const engine::GgufArchitecture& architecture = GgufArchitectureFor(config, source.name());
  GgufReport report;
  report.tensors = PlanGgufTensors(architecture, config, source, dtype);
  GgufKeys keys;
  AddGgufConfig(architecture, config, keys);
  keys.Add("general.type", "model");
  keys.Add("general.name", name);
  keys.Add("general.alignment", static_cast<uint32_t>(kGgufAlignment));
  keys.Add("general.file_type", FileType(dtype, report.tensors));
  keys.Add("general.quantization_version", uint32_t{2});
  AddGgufTokenizer(source, config, keys, &report.warnings);
  if (architecture.caveat != nullptr) {
    std::string caveat = architecture.caveat(config);
    if (!caveat.empty()) report.warnings.push_back(std::move(caveat));
  }
  const std::vector<GgufTensorInfo> infos = FileTensors(source.name(), report.tensors);
  GgufFileWriter writer(context.target, keys, infos);
  WriteGgufTensors(context, writer, report.tensors);
  writer.Finish();
  const ModelConfig written = architecture.folded == nullptr ? config : architecture.folded(config);
  CheckWritten(source, written, context.target, &report.warnings);
  return report;
}

void CompareGguf(const ModelSource& source, const std::filesystem::path& file,
                 const std::string& dtype, const std::function<void(int64_t)>& advance) {
  const ModelConfig config = ConfigOf(source).config;
  const engine::GgufArchitecture& architecture = GgufArchitectureFor(config, source.name());
  const auto written = engine::ModelDir::Open(file);
  int64_t left = source.bytes();
  std::vector<std::byte> buffer;
  for (const GgufTensor& tensor : PlanGgufTensors(architecture, config, source, dtype)) {
    if (tensor.source < 0) continue;  // made from config.json, which was compared
    engine::NamedTensor wanted = source.tensors()[static_cast<size_t>(tensor.source)];
    advance(static_cast<int64_t>(wanted.view.bytes()));
    left -= static_cast<int64_t>(wanted.view.bytes());
    const engine::StoredTensor* stored = written.FindStored(tensor.weight);
    bool same = stored != nullptr;
    if (same) {
      wanted.view.data = source.Read(tensor.source, &buffer).data();
      same = IsNear(tensor, wanted.view, *stored);
      source.LetGo(tensor.source);
      written.LetGo(*stored);
    }
    if (same) continue;
    throw Error(ErrorCode::kDataLoss, source.name() + ": tensor " + Quoted(wanted.name) +
                                          " differs from the written tensor; no target is written");
  }
  advance(left);
}

void WriteGguf(const ConvertSpec& spec, const WriteContext& context) {
  std::filesystem::path name = spec.source.filename();
  if (name.empty()) name = spec.source.parent_path().filename();
  const GgufReport report = WriteGgufFile(context, name.string(), spec.dtype);
  for (const std::string& warning : report.warnings) context.warn(warning);
  context.report(report.Json());
}

std::unique_ptr<ModelSource> OpenGguf(const ConvertSpec& /*spec*/,
                                      const std::filesystem::path& target) {
  return OpenModelFiles(target, {});
}

void CompareWithGguf(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                     const std::function<void(int64_t bytes)>& advance) {
  // Reads the encoded blocks, because `written` would decode them to f32.
  CompareGguf(source, written.name(), spec.dtype, advance);
}

}  // namespace tandem::convert
