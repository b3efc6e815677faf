#include "training/setup/validation_set.h"

#include "training/data/packer.h"
#include "training/setup/open_data.h"
#include "training/setup/run_parts.h"

namespace tandem::training {

ValidationSet::ValidationSet(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool) {
  const OpenedData data = OpenData(spec, files, pool, {.split = DataSplit::kEval});
  PackerOptions options = PackerOptionsOf(spec, data);
  if (!spec.is_dpo() && !spec.is_distill()) options.overflow = Overflow::kSplit;
  options.shuffle = false;
  options.n_epochs = 1;
  Packer packer(options, [&](int64_t i) { return MakeSample(spec, data, i); });
  PackedRow row;
  bool more = packer.Next(&row);
  while (more) {
    MicroBatch batch;
    for (int64_t r = 0; r < spec.rows_per_batch(); ++r) {
      batch.Append(more ? row : PaddingRow(options.row_length, options.pad, options.max_sequence));
      more = more && packer.Next(&row);
    }
    for (const TokenId target : batch.targets) {
      if (target < 0 || files.tokenizer->IsSpecial(target)) continue;
      bytes_ += static_cast<double>(files.tokenizer->TokenBytes(target).size());
    }
    batches_.push_back(std::move(batch));
    const auto n = static_cast<int64_t>(batches_.size());
    if (spec.train.eval_steps > 0 && n == spec.train.eval_steps) break;
  }
}

}  // namespace tandem::training
