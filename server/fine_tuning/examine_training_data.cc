#include "server/fine_tuning/examine_training_data.h"

#include <algorithm>
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

// Limit for a decoded row group of Parquet: a small file may decode to gigabytes.
constexpr int64_t kRowGroupBytes = int64_t{256} << 20;

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

// "row 7" of "file-1a2b, row 7": the file's name on this machine means nothing to a client.
std::string PlaceOf(const std::string& where) {
  const size_t comma = where.rfind(", row ");
  return comma == std::string::npos ? where : where.substr(comma + 2);
}

}  // namespace

TrainingData ExamineTrainingData(const training::TrainSpec& given, const ExamineOptions& wanted) {
  training::TrainSpec spec = given;
  spec.data.on_bad_row = training::OnBadRow::kSkip;
  const training::ModelFiles files = training::LoadModelFiles(spec);
  ThreadPool pool(1);  // leave the other cores to serving
  TrainingData data;
  training::OpenDataOptions options;
  options.keep_lengths = true;
  options.is_cancelled = wanted.is_cancelled;
  options.is_enough = wanted.is_enough;
  options.may_be_empty = true;
  options.row_group_bytes = kRowGroupBytes;
  options.visit = [&](const training::Sample& sample) {
    if (data.shown.size() >= wanted.n_shown) return;
    data.shown.push_back(
        {sample.tokens, {sample.trained.begin(), sample.trained.end()}, sample.second});
  };
  // kUnsupported: a Parquet file with a feature that the reader lacks.
  const auto no_rows =
      ErrorOf({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument, ErrorCode::kUnsupported}, [&] {
        const training::OpenedData opened = training::OpenData(spec, files, pool, options);
        const training::DataReport& report = opened.report;
        data.examples = report.rows;
        data.checked = report.checked;
        data.samples = report.samples;
        data.bad = report.bad_rows;
        for (const training::BadRow& row : report.listed) {
          const int64_t line = LineOf(row.where);
          data.errors.emplace_back(line, (line > 0 ? "" : PlaceOf(row.where) + ": ") + row.reason);
        }
        data.tokens = report.tokens;
        data.longest = report.longest;
        data.trained_tokens = report.trained_tokens;
        data.over_length = report.over_length;
        data.split_rows = report.split_rows;
        data.format = training::NameOf(opened.format);
        data.lengths = report.lengths;
        std::vector<uint64_t> hashes = report.hashes;
        std::sort(hashes.begin(), hashes.end());
        const auto distinct = std::unique(hashes.begin(), hashes.end()) - hashes.begin();
        data.duplicates = std::ssize(hashes) - distinct;
      });
  const bool is_useless = !no_rows && data.samples == 0 && data.bad == 0 && data.checked > 0 &&
                          data.checked == data.examples;
  if (is_useless) {
    data.bad = data.examples;
    data.errors.emplace_back(
        0, "no row has a learned token left: " + std::to_string(data.over_length) +
               " samples are longer than a row (seq_len, over_length)");
  }
  if (no_rows) {
    data.bad = 1;
    data.errors.emplace_back(0, WithoutPath(no_rows->what(), spec.data.train.string()));
  }
  return data;
}

}  // namespace tandem::server
