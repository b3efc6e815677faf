#include "server/fine_tuning/examine_training_data.h"

#include <charconv>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "training/setup/model_files.h"
#include "training/setup/open_data.h"

namespace tandem::server {
namespace {

// "line 7": 7; 0 for anything else.
int64_t LineOf(std::string_view where) {
  constexpr std::string_view kLine = "line ";
  int64_t line = 0;
  if (where.starts_with(kLine)) {
    where.remove_prefix(kLine.size());
    std::from_chars(where.data(), where.data() + where.size(), line);
  }
  return line;
}

}  // namespace

TrainingData ExamineTrainingData(const training::TrainSpec& given,
                                 const std::function<bool(int64_t n_bytes)>& is_cancelled) {
  training::TrainSpec spec = given;
  spec.data.on_bad_row = training::OnBadRow::kSkip;
  const training::ModelFiles files = training::LoadModelFiles(spec);
  ThreadPool pool(1);  // leave the other cores to serving
  TrainingData data;
  training::OpenDataOptions options;
  options.keep_lengths = true;
  options.is_cancelled = is_cancelled;
  options.visit = [&](const training::Sample& sample) {
    if (!data.sample_ids.empty()) return;
    data.sample_ids = sample.tokens;
    data.sample_loss.assign(sample.trained.begin(), sample.trained.end());
  };
  const auto no_good_row = ErrorOf({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument}, [&] {
    const training::OpenedData opened = training::OpenData(spec, files, pool, options);
    const training::DataReport& report = opened.report;
    data.examples = report.rows;
    data.samples = report.samples;
    data.bad = report.bad_rows;
    for (const training::BadRow& row : report.listed) {
      const int64_t line = LineOf(row.where);
      data.errors.emplace_back(line, (line > 0 ? "" : row.where + ": ") + row.reason);
    }
    data.tokens = report.tokens;
    data.longest = report.longest;
    data.lengths = report.lengths;
  });
  if (no_good_row) {
    data.bad = 1;
    data.errors.emplace_back(0, WithoutPath(no_good_row->what(), spec.data.train.string()));
  }
  return data;
}

}  // namespace tandem::server
