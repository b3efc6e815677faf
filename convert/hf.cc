// Hugging Face directories: one model.safetensors, with what lies beside the source's weights.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "convert/formats.h"
#include "convert/model_source.h"
#include "convert/source.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/model_dir.h"
#include "engine/io/safetensors_stream.h"
#include "engine/model/merge_adapter.h"

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

template <typename Source>
std::map<std::string, std::string> TextsOf(const Source& source, const WriteContext& context) {
  std::map<std::string, std::string> texts;
  for (const char* name : kTexts) {
    if (auto text = source.ReadText(name)) texts[name] = std::move(*text);
  }
  texts["convert.json"] = context.record;
  return texts;
}

void Compare(const ModelSource& source, const fs::path& dir, const std::function<void()>& step) {
  const engine::ModelDir written = engine::ModelDir::Open(dir);
  std::vector<std::byte> buffer;
  for (int64_t i = 0; i < static_cast<int64_t>(source.tensors().size()); ++i) {
    step();
    const engine::NamedTensor& tensor = source.tensors()[static_cast<size_t>(i)];
    const engine::StoredTensor* is = written.FindStored(tensor.name);
    const ModelSource::Bytes wanted = source.Read(i, &buffer);
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
    source.LetGo(i);
  }
}

void Copy(const ConvertSpec& spec, const WriteContext& context, engine::IfThere if_there) {
  const std::optional<DType> dtype = FloatTypeOf(spec.dtype);
  const std::unique_ptr<ModelSource> source = OpenModelFiles(spec.source, dtype);
  std::map<std::string, std::string> texts = TextsOf(*source, context);
  if (dtype) texts["config.json"] = engine::ConfigWithDType(texts["config.json"], *dtype);
  const int64_t total = (spec.verify ? 2 : 1) * static_cast<int64_t>(source->tensors().size());
  int64_t done = 0;
  const auto step = [&] { context.progress(done++, total); };
  engine::PublishDirectory(
      spec.target,
      [&](const fs::path& temporary) {
        int64_t read = -1;
        std::vector<std::byte> buffer;
        engine::WriteSafetensors(temporary / "model.safetensors", source->tensors(),
                                 {{"format", "pt"}}, [&](const engine::NamedTensor& tensor) {
                                   step();
                                   if (read >= 0) source->LetGo(read);
                                   read = source->Find(tensor.name);
                                   return source->Read(read, &buffer);
                                 });
        for (const auto& [name, text] : texts) {
          engine::WriteFileAtomically(temporary / name, text);
        }
        if (spec.verify) Compare(*source, temporary, step);
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
                                     .dtype = FloatTypeOf(spec.dtype),
                                     .if_there = if_there,
                                     .progress = context.progress};
  engine::MergeAdapter(base, engine::LoraAdapter::Open(spec.source), options, spec.target,
                       context.ops);
}

}  // namespace tandem::convert
