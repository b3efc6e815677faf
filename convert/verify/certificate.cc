#include "convert/verify/certificate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "convert/formats/formats.h"
#include "convert/formats/hf/hf.h"
#include "convert/sources/source.h"
#include "convert/tensors/model_source.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/out_of_memory.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using engine::ModelDir;
using engine::StoredTensor;

constexpr int64_t kPositions = 128;
constexpr int64_t kWindow = 32;  // tokens
// Limit for the reference logits, held while the result runs. A vocabulary of 262,144 gets 64
// positions.
constexpr int64_t kRecordBytes = 64 << 20;
constexpr int64_t kRowsAtOnce = 64;  // as in RecordLogits
// Directories in work_dir for a result and a source that are written back.
constexpr const char* kReadBack = ".certificate";
constexpr const char* kSourceReadBack = ".certificate-source";

// Reason why nothing was measured.
struct NotMeasured {
  std::string reason;
};

struct Text {
  std::vector<TokenId> tokens;
  int64_t window = 0;
};

// Splits the tokens into windows; the last may be shorter, but has at least two tokens.
Text TextFor(const engine::ModelConfig& config) {
  const int64_t window = std::min(kWindow, config.max_context_len);
  int64_t count = std::clamp<int64_t>(kRecordBytes / 4 / std::max<int64_t>(1, config.vocab_size), 2,
                                      kPositions);
  if (count % window == 1) --count;
  if (window < 2) throw NotMeasured{"the model's context is only one token long"};
  return {engine::SpreadTokens(config.vocab_size, count), window};
}

bool IsF32(const ModelDir& model) {
  const StoredTensor* largest = nullptr;
  for (const std::string& name : model.tensor_names()) {
    const StoredTensor* tensor = model.FindStored(name);
    if (largest == nullptr || tensor->view.elements() > largest->view.elements()) largest = tensor;
  }
  return largest != nullptr && largest->encoding == engine::Encoding::kPlain &&
         largest->view.dtype == DType::kF32;
}

bool HaveEqualTensors(const ModelDir& a, const ModelDir& b, const std::function<void()>& progress) {
  const std::vector<std::string> names = a.tensor_names();
  if (names != b.tensor_names()) return false;
  const auto is_alike = [&](const std::string& name) {
    const StoredTensor &x = *a.FindStored(name), &y = *b.FindStored(name);
    return x.IsAsAsked() && y.IsAsAsked() && x.view.dtype == y.view.dtype &&
           x.view.shape == y.view.shape;
  };
  if (!std::all_of(names.begin(), names.end(), is_alike)) return false;
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    if (progress) progress();
    const StoredTensor &x = *a.FindStored(name), &y = *b.FindStored(name);
    const bool is_equal = std::ranges::equal(x.bytes(), y.bytes());
    a.LetGo(x);
    b.LetGo(y);
    return is_equal;
  });
}

// Throws NotMeasured if the model and its scratch memory do not fit.
void CheckRoom(const ModelDir& files, const engine::LoadOptions& load, int64_t memory_bytes) {
  const engine::ModelOutline outline = engine::OutlineModel(files, load);
  const int64_t needed = outline.weight_bytes + outline.rope_bytes + 2 * kRecordBytes +
                         engine::ModelRunner::ScratchBytes(outline, kRowsAtOnce, kRowsAtOnce);
  if (needed <= memory_bytes) return;
  throw NotMeasured{"running the model needs " + std::to_string(needed >> 20) +
                    " MiB of memory, but " + std::to_string(memory_bytes >> 20) +
                    " MiB are available"};
}

engine::LogitRecord RecordReference(const ModelDir& files, const fs::path& adapter_dir,
                                    const engine::LoadOptions& load,
                                    const CertifyContext& context) {
  CheckRoom(files, load, context.memory_bytes);
  const auto model = engine::Model::Load(files, load, context.ops);
  std::shared_ptr<const engine::Adapter> adapter;
  if (!adapter_dir.empty()) {
    adapter = engine::Adapter::Load(engine::LoraAdapter::Open(adapter_dir), model, context.ops);
  }
  const Text text = TextFor(model->config());
  engine::LogitRecord record =
      engine::RecordLogits(model, adapter.get(), text.tokens, text.window, context.ops);
  const bool is_finite = std::all_of(record.logits.begin(), record.logits.end(),
                                     [](float logit) { return std::isfinite(logit); });
  if (!is_finite) throw NotMeasured{"the source produces logits that are not finite"};
  return record;
}

// Writes a model that the engine cannot open as one that it can. `what` is for the message.
ModelDir ReadBack(const ModelSource& model, const char* what, const char* dir_name,
                  const CertifyContext& context) {
  const int64_t free = engine::FreeDiskBytes(context.work_dir);
  if (free < model.bytes()) {
    throw NotMeasured{std::string("reading the ") + what + " back needs " +
                      std::to_string(model.bytes() >> 20) + " MiB of disk space, but " +
                      std::to_string(free >> 20) + " MiB are free"};
  }
  const fs::path read_back = context.work_dir / dir_name;
  fs::remove_all(read_back);  // of a killed process
  fs::create_directory(read_back);
  WriteHf({}, {.source = model, .target = read_back, .ops = context.ops, .advance = [&](int64_t) {
                 if (context.progress) context.progress();
               }});
  return ModelDir::Open(read_back);
}

// Opens a model with the engine; nullopt if the engine does not support it.
std::optional<ModelDir> OpenDirectly(const fs::path& path) {
  std::optional<ModelDir> model;
  ErrorOtherThan({ErrorCode::kDataLoss}, [&] { model = ModelDir::Open(path); });
  return model;
}

std::string Figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// Checks the distance, regardless of which conversion was asked for.
void CheckDistance(const ConvertSpec& spec, const Certificate& certificate) {
  const engine::LogitDistance& distance = certificate.distance;
  if (certificate.equal_tensors && distance.max_abs_difference != 0) {
    throw Error(ErrorCode::kDataLoss,
                spec.target.filename().string() +
                    ": the tensors equal the source's, but the logits differ by " +
                    Figure(distance.max_abs_difference) +
                    ", so config.json describes another model; no target is written");
  }
  if (!spec.max_kl || distance.max_kl <= *spec.max_kl) return;
  throw Error(ErrorCode::kDataLoss,
              spec.target.filename().string() + ": the KL divergence from the source is up to " +
                  Figure(distance.max_kl) + " (mean " + Figure(distance.mean_kl) + " of " +
                  std::to_string(distance.n_positions) + " positions), more than max_kl " +
                  Figure(*spec.max_kl) + "; no target is written");
}

Certificate Measure(const ConvertSpec& spec, const fs::path& result_path,
                    const CertifyContext& context) {
  const bool is_adapter = FormOf(spec.source, "source").kind == SourceKind::kAdapter;
  // An extracted adapter is run on its base.
  const Format& format = *FindFormat(spec.format);
  const bool makes_adapter = format.is_difference;
  std::optional<ModelDir> source = OpenDirectly(is_adapter ? spec.base : spec.source);
  if (!source && (makes_adapter || format.IsFile())) {
    // The written numbers differ from the source's; only running both shows how much that matters.
    // An adapter is extracted from f32 numbers.
    const std::optional<DType> dtype = makes_adapter ? std::optional(DType::kF32) : std::nullopt;
    source = ReadBack(*OpenSource(spec, dtype), "source", kSourceReadBack, context);
  }
  if (!source) {
    throw NotMeasured{"this engine cannot run the source; its tensors were " +
                      std::string(spec.verify ? "" : "not ") +
                      "compared with the written tensors, one by one"};
  }
  std::optional<ModelDir> opened = OpenDirectly(makes_adapter ? spec.base : result_path);
  if (makes_adapter && !opened) throw NotMeasured{"this engine cannot run the base"};
  const ModelDir result =
      opened ? std::move(*opened)
             : ReadBack(*format.open(spec, result_path), "result", kReadBack, context);

  Certificate certificate;
  certificate.state = Certificate::State::kMeasured;
  const DType compute = IsF32(*source) || IsF32(result) ? DType::kF32 : DType::kBF16;
  certificate.compute = DTypeName(compute);
  // A single file has its config translated to Hugging Face's terms, with numbers in f32.
  certificate.equal_tensors =
      !is_adapter && !makes_adapter && !fs::is_regular_file(source->name()) &&
      !fs::is_regular_file(result_path) && HaveEqualTensors(*source, result, context.progress);
  engine::LoadOptions load{.dtype = compute, .cache_dir = context.cache_dir};
  if (context.progress) load.progress = [&](double) { context.progress(); };

  engine::LogitRecord record;
  const auto no_reference = ErrorOtherThan({ErrorCode::kCancelled}, [&] {
    record = RecordReference(*source, is_adapter ? spec.source : fs::path(), load, context);
  });
  if (no_reference) {
    throw NotMeasured{std::string("the engine could not run the source: ") + no_reference->what()};
  }
  CheckRoom(result, load, context.memory_bytes);
  certificate.windows =
      (static_cast<int64_t>(record.tokens.size()) + record.window - 1) / record.window;
  const auto model = engine::Model::Load(result, load, context.ops);
  std::shared_ptr<const engine::Adapter> made;
  if (makes_adapter) {
    made = engine::Adapter::Load(engine::LoraAdapter::Open(result_path), model, context.ops);
  }
  const auto error = ErrorOtherThan({ErrorCode::kCancelled}, [&] {
    certificate.distance = engine::MeasureLogitDistance(record, model, context.ops, made.get());
  });
  if (error) {
    throw Error(ErrorCode::kDataLoss, spec.target.filename().string() +
                                          ": the target differs from the source: " + error->what() +
                                          "; no target is written");
  }
  return certificate;
}

const char* StateName(Certificate::State state) {
  switch (state) {
    case Certificate::State::kMeasured:
      return "measured";
    case Certificate::State::kNotMeasured:
      return "not_measured";
    case Certificate::State::kOff:
      return "off";
  }
  return "";
}

}  // namespace

std::string CertificateJson(const Certificate& certificate) {
  nlohmann::ordered_json out = {{"state", StateName(certificate.state)}};
  if (!certificate.reason.empty()) out["reason"] = certificate.reason;
  if (certificate.state != Certificate::State::kMeasured) {
    return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  const engine::LogitDistance& distance = certificate.distance;
  out["compute"] = certificate.compute;
  out["equal_tensors"] = certificate.equal_tensors;
  out["positions"] = distance.n_positions;
  out["windows"] = certificate.windows;
  out["max_abs_difference"] = distance.max_abs_difference;
  out["mean_kl"] = distance.mean_kl;
  out["max_kl"] = distance.max_kl;
  out["same_first_choice"] = distance.same_first_choice;
  // No perplexities: the token ids are spread over the vocabulary and are not text, so every model
  // predicts them badly.
  return out.dump();
}

Certificate Certify(const ConvertSpec& spec, const fs::path& result,
                    const CertifyContext& context) {
  Certificate certificate;
  if (!spec.certificate) {
    certificate.reason = "the certificate was not requested";
    return certificate;
  }
  std::optional<NotMeasured> cause;
  const bool has_memory = HasMemoryFor([&] {
    cause = ExceptionOf<NotMeasured>([&] {
      certificate = Measure(spec, result, context);
      CheckDistance(spec, certificate);
    });
  });
  if (cause) certificate.reason = cause->reason;
  if (!has_memory) certificate.reason = "memory ran out while a model was running";
  for (const char* read_back : {kReadBack, kSourceReadBack}) {
    std::error_code ignored;
    fs::remove_all(context.work_dir / read_back, ignored);
  }
  if (!certificate.reason.empty()) {
    certificate.state = Certificate::State::kNotMeasured;
    if (spec.max_kl) {
      throw Error(ErrorCode::kUnsupported,
                  "max_kl cannot be checked: " + certificate.reason + "; no target is written");
    }
  }
  return certificate;
}

}  // namespace tandem::convert
