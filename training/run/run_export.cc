#include "training/run/run_export.h"

#include "engine/io/atomic_write.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "training/lora/lora.h"
#include "training/run/sample.h"
#include "training/run/shared_files.h"

namespace tandem::training {

namespace fs = std::filesystem;

const char* WeightsFile(const RunParts& parts) {
  return parts.trainer.base() ? "adapter_model.safetensors" : "model.safetensors";
}

std::string AdapterConfig(const RunParts& parts) {
  return LoraConfigOf(parts.adapter.options, parts.trainer.lora_targets(),
                      parts.trainer.base()->weight_specs(),
                      parts.spec.model.load_parameters_path.string());
}

std::map<std::string, std::string> AdapterMetadata(const RunParts& parts) {
  const engine::Model& base = *parts.trainer.base();
  return engine::LoraMetadata(base.content_hash(), base.dtype(), base.weights_type());
}

namespace {

void ExportTogether(const RunParts& parts, const fs::path& dir) {
  SharedFiles files(parts, false);
  files.WriteAll([&](const SharedFiles::Write& write) {
    const auto fill = [&](const fs::path& to) {
      write(to);
      for (const auto& [name, text] : files.texts()) engine::WriteFileAtomically(to / name, text);
    };
    parts.is_adapter() ? ExportAdapter(AdapterConfig(parts), fill, dir)
                       : ExportModel(parts.files, fill, dir);
  });
}

}  // namespace

void ExportRun(const RunParts& parts, const fs::path& dir) {
  if (WritesTogether(parts)) return ExportTogether(parts, dir);
  if (!parts.is_first_rank()) return;
  parts.is_adapter()
      ? ExportAdapter(AdapterConfig(parts), AdapterMetadata(parts), parts.trainer.parameters(), dir)
      : ExportModel(parts.files, parts.trainer.parameters(), dir);
}

void ExportRun(const RunParts& parts, const fs::path& from, const fs::path& dir) {
  parts.is_adapter() ? ExportAdapter(AdapterConfig(parts), from, dir)
                     : ExportModel(parts.files, from, dir);
}

bool HasWeights(const RunParts& parts, const fs::path& dir) {
  return fs::exists(dir / WeightsFile(parts)) || fs::exists(dir / "model.safetensors.index.json");
}

engine::MergeReport ExportMerged(RunParts& parts, const fs::path& cache_dir,
                                 const fs::path& adapter, const fs::path& dir) {
  const auto base = engine::ModelDir::Open(parts.spec.model.load_parameters_path);
  const engine::MergeOptions options{
      .texts = parts.files.texts, .cache_dir = cache_dir, .if_there = engine::IfThere::kReplace};
  return engine::MergeAdapter(base, engine::LoraAdapter::Open(adapter), options, dir, parts.ops);
}

void WriteSamples(RunParts& parts, const fs::path& dir,
                  const std::function<void(const std::string&)>& report) {
  ExportRun(parts, dir);
  if (!parts.is_first_rank()) return;
  engine::LoadOptions load;
  load.dtype = parts.spec.compute;
  const auto model = parts.trainer.base()
                         ? parts.trainer.base()
                         : engine::Model::Load(engine::ModelDir::Open(dir), load, parts.ops);
  std::shared_ptr<const engine::Adapter> adapter;
  if (parts.trainer.base()) {
    adapter = engine::Adapter::Load(engine::LoraAdapter::Open(dir), model, parts.ops);
  }
  for (const std::string& prompt : parts.spec.train.sample.prompts) {
    std::vector<TokenId> ids;
    if (parts.spec.data.add_bos && parts.files.bos) ids.push_back(*parts.files.bos);
    const auto text = parts.files.tokenizer->Encode(prompt, engine::SpecialTokens::kParseSpecial);
    ids.insert(ids.end(), text.begin(), text.end());
    const std::vector<TokenId> generated =
        Generate(model, parts.ops, ids, parts.spec.train.sample, adapter.get());
    report(prompt + engine::Decode(*parts.files.tokenizer, generated, true));
  }
  fs::remove_all(dir);
}

}  // namespace tandem::training
