#include "training/run/run_announcement.h"

#include <cstdio>
#include <string>

#include "engine/base/available_memory.h"
#include "engine/base/quoted.h"
#include "training/lora/lora.h"
#include "training/run/process_memory.h"

namespace tandem::training {
namespace {

void AnnounceRanks(const RunParts& parts, const RunReporter& say) {
  const TrainSpec& spec = parts.spec;
  say.report(std::to_string(parts.ranks->size()) +
             " ranks share each step: " + std::to_string(spec.batches_per_step()) +
             " micro-batches of " + std::to_string(spec.rows_per_batch()) + " rows" +
             (spec.step_shape->tensor > 1
                  ? ", each computed by " + std::to_string(spec.step_shape->tensor) +
                        " ranks with their parts of the matrices" +
                        (spec.step_shape->divides_rows ? " and, between them, of the rows" : "")
                  : ""));
}

void AnnounceTargets(const RunParts& parts, const RunReporter& say) {
  const engine::Model& base = *parts.trainer.base();
  for (const std::string& line :
       DescribeTargets(parts.trainer.lora_targets(), base.weight_specs())) {
    say.report("  " + line);
  }
  for (const std::string& line : UnmatchedBranches(parts.spec.lora, base.family(), base.config())) {
    say.warn("lora.module_path: " + line);
  }
  for (const std::string& name : TargetsPassedOver(parts.spec.lora, base.family(), base.config())) {
    say.warn("lora.module_path also matches " + name + ", which has no adapter" +
             (parts.spec.lora.embeddings ? "" : " without lora.embeddings"));
  }
  const std::string& trained_beside = parts.adapter.base_hash;
  if (!trained_beside.empty() && trained_beside != base.content_hash()) {
    say.warn("the adapter of lora.load_path was trained on a different base model");
  }
}

void AnnounceData(const RunParts& parts, const RunReporter& say) {
  const OpenedData& data = parts.data;
  if (data.format != RowFormat::kPlain || data.is_prepared || !data.kinds.empty()) {
    say.report(Summary(parts.spec, data));
  }
  if (const std::string notice = SplitRowsNotice(data); !notice.empty()) say.report(notice);
  for (const TokenId end : parts.turn_ends) {
    const std::string what =
        "answers end with " + Quoted(parts.files.tokenizer->TokenBytes(end), 40);
    if (parts.is_adapter()) {
      say.warn(
          what +
          ", which is not an end token of the base model: answers of the served adapter do not "
          "stop there");
    } else {
      say.report(what + ", which becomes an end token of the exported model");
    }
  }
  if (data.report.bad_rows > 0) say.warn(data.report.BadRows(parts.spec.data.train.string()));
  if (const std::string notice = OverLengthNotice(parts.spec, data); !notice.empty()) {
    say.warn(notice);
  }
}

}  // namespace

void AnnounceRun(const RunParts& parts, const RunReporter& say) {
  if (parts.ranks != nullptr) AnnounceRanks(parts, say);
  const Trainer& trainer = parts.trainer;
  char base[64] = "";
  if (trainer.base()) {
    std::snprintf(base, sizeof base, "base %.1f MiB%s, ",
                  static_cast<double>(trainer.base()->weight_bytes()) / 0x1p20,
                  trainer.base()->is_mapped() ? " (mapped)" : "");
    say.report("an adapter of rank " + std::to_string(parts.adapter.options.rank) + " for " +
               std::to_string(trainer.lora_targets().size()) + " layers of a model of " +
               std::to_string(trainer.base()->parameter_count()) + " parameters in " +
               trainer.base()->weights_type());
    AnnounceTargets(parts, say);
  }
  char text[320];
  std::snprintf(text, sizeof text,
                "%lld parameters, %s, %lld samples, arithmetic %s, memory: %sparameters %.1f MiB, "
                "activations %.1f MiB",
                static_cast<long long>(trainer.parameters().parameter_count()),
                std::string(engine::DTypeName(parts.spec.compute)).c_str(),
                static_cast<long long>(parts.data.source->size()),
                std::string(parts.ops.kernels().key).c_str(), base,
                static_cast<double>(trainer.parameters().bytes()) / 0x1p20,
                static_cast<double>(trainer.program().arena_bytes) / 0x1p20);
  say.report(text);
  AnnounceData(parts, say);
}

// The words of MaxText's line, so that scripts that look for it work.
std::string MemoryLine(const TrainSpec& spec) {
  const auto used = static_cast<double>(StatusBytes("VmHWM"));
  const int64_t set = spec.resources.memory_max_bytes;
  const auto limit =
      static_cast<double>(set > 0 ? set : AvailableMemoryBytes() + StatusBytes("VmRSS"));
  char text[160];
  std::snprintf(text, sizeof text,
                "Memstats: after the run: using (GB) %.2f / %.2f (%.1f%%) on this process, the "
                "peak and its limit",
                used / 1e9, limit / 1e9, 100 * used / limit);
  return text;
}

}  // namespace tandem::training
