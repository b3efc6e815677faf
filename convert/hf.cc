// Hugging Face directories: one model.safetensors, with what lies beside the source's weights.

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "convert/formats.h"
#include "convert/source.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/model_dir.h"
#include "engine/io/safetensors_stream.h"
#include "engine/model/merge_adapter.h"
#include "engine/tensor/round.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;

// What belongs to a model besides its weights.
constexpr std::array kTexts = {
    "config.json",        "generation_config.json",  "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json", "added_tokens.json",  "vocab.json",
    "merges.txt",         "chat_template.jinja",     "chat_template.json", "qwen.tiktoken",
    "tokenizer.tiktoken", "tiktoken.model"};

std::map<std::string, std::string> TextsOf(const engine::ModelDir& model,
                                           const WriteContext& context) {
  std::map<std::string, std::string> texts;
  for (const char* name : kTexts) {
    if (auto text = model.ReadText(name)) texts[name] = std::move(*text);
  }
  texts["convert.json"] = context.record;
  return texts;
}

std::optional<DType> DTypeOf(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  if (name == "f16") return DType::kF16;
  return std::nullopt;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

// Every tensor of a checkpoint, under its own name, in another type or as it is.
class Copier {
 public:
  Copier(const engine::ModelDir& model, std::optional<DType> dtype) : model_(model) {
    for (const std::string& name : model.tensor_names()) {
      engine::ConstTensorView view = model.FindStored(name)->view;
      view.data = nullptr;
      if (dtype && IsFloat(view.dtype)) view.dtype = *dtype;
      tensors_.push_back({name, std::move(view)});
    }
  }

  int64_t size() const { return static_cast<int64_t>(tensors_.size()); }
  const std::vector<engine::NamedTensor>& tensors() const { return tensors_; }

  // As they will be written. They stay until the next are asked for.
  std::span<const std::byte> BytesOf(const engine::NamedTensor& tensor) {
    LetGo();
    read_ = model_.FindStored(tensor.name);
    if (read_->view.dtype == tensor.view.dtype) return read_->bytes();
    const std::vector<float> values = engine::DecodeTensor(*read_);
    if (!engine::FitsIn(values, tensor.view.dtype)) {
      throw Error(ErrorCode::kDataLoss,
                  model_.name() + ": tensor " + Quoted(tensor.name) + " holds values that " +
                      std::string(DTypeName(tensor.view.dtype)) + " does not have");
    }
    engine::RoundTo(tensor.view.dtype, values, &buffer_);
    return buffer_;
  }
  void LetGo() {
    if (read_ != nullptr) model_.LetGo(*read_);
    read_ = nullptr;
  }

 private:
  const engine::ModelDir& model_;
  std::vector<engine::NamedTensor> tensors_;  // without data
  const engine::StoredTensor* read_ = nullptr;
  std::vector<std::byte> buffer_;
};

void Compare(Copier& copier, const fs::path& dir, const std::function<void()>& step) {
  const engine::ModelDir written = engine::ModelDir::Open(dir);
  for (const engine::NamedTensor& tensor : copier.tensors()) {
    step();
    const engine::StoredTensor* is = written.FindStored(tensor.name);
    const std::span<const std::byte> wanted = copier.BytesOf(tensor);
    const bool same =
        is != nullptr && is->view.dtype == tensor.view.dtype &&
        is->view.shape == tensor.view.shape &&
        std::equal(wanted.begin(), wanted.end(), is->bytes().begin(), is->bytes().end());
    if (!same) {
      throw Error(ErrorCode::kDataLoss, dir.filename().string() + ": tensor " +
                                            Quoted(tensor.name) +
                                            " is not what was written; nothing is kept");
    }
    written.LetGo(*is);
  }
  copier.LetGo();
}

void Copy(const ConvertSpec& spec, const WriteContext& context, engine::IfThere if_there) {
  const engine::ModelDir model = engine::ModelDir::Open(spec.source);
  const std::optional<DType> dtype = DTypeOf(spec.dtype);
  Copier copier(model, dtype);
  std::map<std::string, std::string> texts = TextsOf(model, context);
  if (dtype) texts["config.json"] = engine::ConfigWithDType(texts["config.json"], *dtype);
  const int64_t total = (spec.verify ? 2 : 1) * copier.size();
  int64_t done = 0;
  const auto step = [&] { context.progress(done++, total); };
  engine::PublishDirectory(
      spec.target,
      [&](const fs::path& temporary) {
        engine::WriteSafetensors(temporary / "model.safetensors", copier.tensors(),
                                 {{"format", "pt"}}, [&](const engine::NamedTensor& tensor) {
                                   step();
                                   return copier.BytesOf(tensor);
                                 });
        for (const auto& [name, text] : texts) {
          engine::WriteFileAtomically(temporary / name, text);
        }
        if (spec.verify) Compare(copier, temporary, step);
      },
      if_there);
}

}  // namespace

void WriteHf(const ConvertSpec& spec, const WriteContext& context) {
  const auto if_there = spec.overwrite ? engine::IfThere::kReplace : engine::IfThere::kRefuse;
  if (SniffSource(spec.source, "source") == SourceKind::kHf) {
    return Copy(spec, context, if_there);
  }
  // Merged weights are always compared, by what the model says: there is nothing else to hold them
  // to.
  const engine::ModelDir base = engine::ModelDir::Open(spec.base);
  const engine::MergeOptions options{.texts = TextsOf(base, context),
                                     .cache_dir = context.cache_dir,
                                     .dtype = DTypeOf(spec.dtype),
                                     .if_there = if_there,
                                     .progress = context.progress};
  engine::MergeAdapter(base, engine::LoraAdapter::Open(spec.source), options, spec.target,
                       context.ops);
}

}  // namespace tandem::convert
