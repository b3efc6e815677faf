#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/thread_pool.h"
#include "training/data/row_source.h"
#include "training/data/sample_source.h"
#include "training/data/tok_file.h"
#include "training/setup/model_files.h"
#include "training/spec/spec.h"

namespace tandem::training {

enum class DataSplit { kTrain, kEval };

// The data of a spec, as a run sees it. Opening it finds every fault of the data.
struct OpenedData {
  std::unique_ptr<SampleSource> source;
  std::vector<std::filesystem::path> files;
  RowFormat format = RowFormat::kPlain;
  bool is_prepared = false;          // a .tok file
  bool is_known = false;             // an earlier start has checked the rows
  std::vector<MixturePart> mixture;  // with data.mixture_weights
  // With data.mixture_weights: what the parts are, "messages, prepared". The fields above are then
  // those of all parts: `format` is plain unless all are rows, and is_prepared and is_known hold
  // for every part, is_known for rows only.
  std::string kinds;
  DataReport report;  // of rows; other sources count only the samples
};

// Options of a caller.
struct OpenDataOptions {
  DataSplit split = DataSplit::kTrain;
  bool keep_lengths = false;
  RowSource::Visit visit = {};  // see RowSource
  // See EncoderOptions; also called before each row, with 0 bytes.
  std::function<bool(int64_t n_bytes)> is_cancelled = {};
  // See RowOptions: these allow a check of some rows, and of a file without a good row.
  std::function<bool()> is_enough = {};
  bool may_be_empty = false;
  // Limit for a decoded row group of Parquet; 0: the reader's own.
  int64_t row_group_bytes = 0;
  // Record of the row check (checked_rows.h), reused by later runs; empty: none.
  std::filesystem::path record = {};
};

// Opens data.train or data.eval; the source borrows `files`. Throws kDataLoss naming bad rows when
// data.on_bad_row asks for an error. Refuses a .tok file prepared for other settings.
OpenedData OpenData(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                    const OpenDataOptions& options = {});

// Content hash of the files in order, 64 hex digits, as engine::ContentHashOf. Maps one file at a
// time. Caches the hash of each unchanged file in `memo_dir`. Throws kIo / kNotFound.
std::string HashOfFiles(const std::vector<std::filesystem::path>& files,
                        const std::filesystem::path& memo_dir);

// The settings that a prepared file must share with the spec that uses it.
TokIdentity IdentityOf(const TrainSpec& spec, const ModelFiles& files);

// Control tokens that end the trained parts of the first samples. A server must stop at them,
// because the model learns to emit them.
std::vector<TokenId> TurnEnds(const SampleSource& source, const engine::Tokenizer& tokenizer);

// One line for a run's log: samples, share of trained tokens, counts of cut and dropped samples.
std::string Summary(const TrainSpec& spec, const OpenedData& data);
// The number of rows longer than a run reads, and their fate; empty: none.
std::string OverLengthNotice(const TrainSpec& spec, const OpenedData& data);
// The number of rows that became one sample per answer, and the reason; empty: none.
std::string SplitRowsNotice(const OpenedData& data);

}  // namespace tandem::training
