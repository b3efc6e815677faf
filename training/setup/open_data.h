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

// The data of a spec, as a run sees it. Everything that can be wrong with it is found here.
struct OpenedData {
  std::unique_ptr<SampleSource> source;
  std::vector<std::filesystem::path> files;
  RowFormat format = RowFormat::kPlain;
  bool is_prepared = false;  // a .tok file
  bool is_known = false;     // rows that an earlier start has checked
  DataReport report;         // of rows; of other sources only the samples are counted
};

// What a caller wants beyond the source.
struct OpenDataOptions {
  DataSplit split = DataSplit::kTrain;
  bool keep_lengths = false;
  RowSource::Visit visit = {};              // see RowSource
  std::function<bool()> is_cancelled = {};  // see RowOptions
  // Where what the check of rows finds is kept for the next time (CheckedRows); empty: nowhere.
  std::filesystem::path record = {};
};

// Opens data.train or data.eval. `files` is borrowed by the source. When rows are bad and
// data.on_bad_row says so, throws kDataLoss naming them. A .tok file that was prepared for
// something else is refused.
OpenedData OpenData(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                    const OpenDataOptions& options = {});

// SHA-256 of the files' contents in their order, 64 hex digits. Reads them once; a file in
// `memo_dir` remembers the result for unchanged files. Throws kIo / kNotFound.
std::string HashOfFiles(const std::vector<std::filesystem::path>& files,
                        const std::filesystem::path& memo_dir);

// What a prepared file must share with the spec that uses it.
TokIdentity IdentityOf(const TrainSpec& spec, const ModelFiles& files);

// The control tokens that end the trained parts of the first samples: a model that has learned them
// must be stopped there when it is served.
std::vector<TokenId> TurnEnds(const SampleSource& source, const engine::Tokenizer& tokenizer);

// The report in one line for a run's log: samples, share of trained tokens, what is cut or left
// out.
std::string Summary(const TrainSpec& spec, const OpenedData& data);
// The number of rows that are longer than a run reads of each, and their fate; empty: none.
std::string OverLengthNotice(const TrainSpec& spec, const OpenedData& data);
// The number of rows that became a sample for each answer, and the reason; empty: none.
std::string SplitRowsNotice(const OpenedData& data);

}  // namespace tandem::training
