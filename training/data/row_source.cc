#include "training/data/row_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "training/data/order/permutation.h"
#include "training/data/pair.h"

namespace tandem::training {
namespace {

// Rows checked together by several threads: enough for them, few enough to hold their tokens in
// memory. One thread checks one row at a time.
constexpr int64_t kRowsAtOnce = 512;
// Tokens of all samples of a row with one sample per answer. Their number is quadratic in the
// number of answers.
constexpr int64_t kMaxTokensApart = 16 << 20;

bool IsLong(const Sample& sample, const RowOptions& options) {
  return options.max_tokens > 0 && LongestSequence(sample) > options.max_tokens;
}

}  // namespace

uint64_t HashOf(const Sample& sample) {
  uint64_t hash = sample.tokens.size();
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    hash = HashCounter(hash, static_cast<uint64_t>(sample.tokens[i]) * 2 + sample.trained[i]);
  }
  if (sample.is_pair()) hash = HashCounter(hash, sample.second);
  return hash;
}

std::string DataReport::BadRows(const std::string& file) const {
  std::string text = file + ": " + std::to_string(bad_rows) + " of " + std::to_string(rows) +
                     (rows == 1 ? " row is bad" : " rows are bad");
  for (const BadRow& bad : listed) text += "\n  " + bad.where + ": " + bad.reason;
  const auto more = bad_rows - static_cast<int64_t>(listed.size());
  if (more > 0) text += "\n  and " + std::to_string(more) + " more";
  return text;
}

struct RowSource::Checked {
  std::vector<Sample> samples;
  bool is_apart = false;  // each sample is one answer
  std::string fault;      // empty: the row is good
  bool is_cancelled = false;
};

RowSource::RowSource(std::shared_ptr<const RowFile> rows,
                     std::shared_ptr<const SampleEncoder> encoder, const RowOptions& options)
    : rows_(std::move(rows)), encoder_(std::move(encoder)), options_(options) {}

std::unique_ptr<RowSource> RowSource::Open(std::shared_ptr<const RowFile> rows,
                                           std::shared_ptr<const SampleEncoder> encoder,
                                           const RowOptions& options, ThreadPool& pool,
                                           DataReport* report, const Visit& visit) {
  std::unique_ptr<RowSource> source(new RowSource(std::move(rows), std::move(encoder), options));
  source->CheckAll(pool, report, visit);
  const std::string& name = source->rows_->name();
  if (report->bad_rows > 0 && options.on_bad_row == OnBadRow::kError) {
    throw Error(ErrorCode::kDataLoss,
                report->BadRows(name) + "\nfix them, or skip them with data.on_bad_row=skip");
  }
  if (source->size() == 0 && !options.may_be_empty) {
    throw Error(ErrorCode::kDataLoss,
                name + ": none of " + std::to_string(report->rows) +
                    " rows gives a sample to train on (" + std::to_string(report->bad_rows) +
                    " bad rows; " + std::to_string(report->over_length) +
                    " samples longer than a row, " + std::to_string(report->zero_loss) +
                    " without a trained token after truncation)" +
                    (report->bad_rows > 0 ? "\n" + report->BadRows(name) : ""));
  }
  return source;
}

std::unique_ptr<RowSource> RowSource::OpenChecked(std::shared_ptr<const RowFile> rows,
                                                  std::shared_ptr<const SampleEncoder> encoder,
                                                  const RowOptions& options) {
  std::unique_ptr<RowSource> source(new RowSource(std::move(rows), std::move(encoder), options));
  source->n_samples_ = source->rows_->size();
  return source;
}

void RowSource::CheckAll(ThreadPool& pool, DataReport* report, const Visit& visit) {
  *report = {};
  report->rows = rows_->size();
  std::vector<Checked> checked;
  const auto is_enough = [&] { return options_.is_enough && options_.is_enough(); };
  const int64_t at_once = pool.n_threads() == 1 ? 1 : kRowsAtOnce;
  ProgressTask task("checking rows of " + rows_->name(), "rows", rows_->size());
  for (int64_t from = 0; from < rows_->size() && !is_enough(); from += at_once) {
    const int64_t n = std::min(at_once, rows_->size() - from);
    checked.assign(static_cast<size_t>(n), {});
    pool.ParallelFor(n, [&](int64_t i, int) {
      if (!IsCancelled()) checked[static_cast<size_t>(i)] = Check(from + i);
    });
    const bool is_cancelled =
        IsCancelled() || std::any_of(checked.begin(), checked.end(),
                                     [](const Checked& row) { return row.is_cancelled; });
    if (is_cancelled) {
      if (!IsCancelled() && is_enough()) break;
      throw Error(ErrorCode::kCancelled, rows_->name() + ": check cancelled");
    }
    for (int64_t i = 0; i < n; ++i) {
      Count(from + i, checked[static_cast<size_t>(i)], report, visit);
    }
    task.Add(n);
    report->checked += n;
  }
  report->samples = n_samples_;
}

bool RowSource::IsCancelled() const { return options_.is_cancelled && options_.is_cancelled(); }

// A bad row is a finding: the check collects all of them.
RowSource::Checked RowSource::Check(int64_t row) const {
  Checked checked;
  const auto error = ErrorOf([&] {
    MakeAll(row, &checked);
    for (const Sample& sample : checked.samples) {
      if (options_.overflow != Overflow::kError || !IsLong(sample, options_)) continue;
      checked.fault = "has " + std::to_string(LongestSequence(sample)) +
                      " tokens, but a row holds only " + std::to_string(options_.max_tokens);
    }
  });
  if (error) {
    checked.fault = error->what();
    checked.is_cancelled = error->code() == ErrorCode::kCancelled;
  }
  return checked;
}

void RowSource::Count(int64_t row, const Checked& checked, DataReport* report, const Visit& visit) {
  if (!checked.fault.empty()) {
    ++report->bad_rows;
    if (report->listed.size() < DataReport::kMaxListed) {
      report->listed.push_back({rows_->Where(row), checked.fault});
    }
    return;
  }
  if (checked.is_apart && options_.turns == Turns::kAuto) ++report->split_rows;
  for (size_t k = 0; k < checked.samples.size(); ++k) {
    const Sample& sample = checked.samples[k];
    if (!IsKept(sample, report)) continue;
    const int64_t length = LongestSequence(sample);
    report->tokens += static_cast<int64_t>(sample.tokens.size());
    report->trained_tokens += TrainedTokens(sample);
    if (options_.keep_lengths) {
      report->lengths.push_back(static_cast<int32_t>(length));
      report->hashes.push_back(HashOf(sample));
    }
    if (sample.is_pair()) report->pairs_hash = HashCounter(report->pairs_hash, HashOf(sample));
    Keep({row, checked.is_apart ? static_cast<int32_t>(k) : -1});
    if (visit) visit(sample);
  }
}

bool RowSource::IsKept(const Sample& sample, DataReport* report) const {
  report->longest = std::max(report->longest, LongestSequence(sample));
  const bool is_long = IsLong(sample, options_);
  if (is_long) ++report->over_length;
  if (is_long && options_.overflow == Overflow::kDrop) return false;
  const bool is_cut = is_long && options_.overflow == Overflow::kTruncate;
  const int64_t trained = is_long && options_.overflow == Overflow::kTruncateLeft
                              ? TrainedTokensOfEnds(sample, options_.max_tokens)
                              : TrainedTokens(sample, is_cut ? options_.max_tokens : 0);
  if (trained > 0) return true;
  ++report->zero_loss;
  return false;
}

void RowSource::Keep(const Place& place) {
  const bool is_identity = places_.empty() && place.row == n_samples_ && place.turn < 0;
  if (!is_identity) {
    // From this sample on, numbers of samples and rows differ: stores the earlier places too.
    for (auto i = static_cast<int64_t>(places_.size()); i < n_samples_; ++i) {
      places_.push_back({i, -1});
    }
    places_.push_back(place);
  }
  ++n_samples_;
}

RowSource::Place RowSource::PlaceOf(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < n_samples_);
  return places_.empty() ? Place{i, -1} : places_[static_cast<size_t>(i)];
}

void RowSource::MakeAll(int64_t row, Checked* checked) const {
  const Example example = ParseExample(rows_->Read(row), options_.example);
  const bool is_one = options_.turns == Turns::kTogether || !example.is_chat() || example.rejected;
  if (is_one) {
    checked->samples.push_back(Encode(example));
    return;
  }
  if (options_.turns == Turns::kAuto) {
    if (auto whole = encoder_->EncodeWhole(example.chat)) {
      checked->samples.push_back(std::move(*whole));
      return;
    }
  }
  checked->is_apart = true;
  const std::vector<size_t> learned = LearnedMessages(example.chat);
  int64_t n_tokens = 0;
  for (const size_t message : learned) {
    checked->samples.push_back(encoder_->EncodeChat(UpTo(example.chat, message)));
    n_tokens += std::ssize(checked->samples.back().tokens);
    if (n_tokens <= kMaxTokensApart) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "one sample for each of its " + std::to_string(learned.size()) +
                    " answers makes more than " + std::to_string(kMaxTokensApart) +
                    " tokens: split the chat into several rows");
  }
}

Sample RowSource::Encode(const Example& example) const {
  Sample sample = encoder_->Encode(example);
  if (!example.rejected) return sample;
  return JoinPair(std::move(sample), encoder_->Encode(*example.rejected),
                  options_.max_prompt_tokens);
}

Sample RowSource::MakeTurn(const Example& example, int32_t turn) const {
  if (turn < 0 || !example.is_chat()) return Encode(example);
  const size_t message = LearnedMessages(example.chat).at(static_cast<size_t>(turn));
  return encoder_->EncodeChat(UpTo(example.chat, message));
}

Sample RowSource::Make(int64_t i) const {
  const Place place = PlaceOf(i);
  return MakeTurn(ParseExample(rows_->Read(place.row), options_.example), place.turn);
}

std::string RowSource::Where(int64_t i) const {
  const Place place = PlaceOf(i);
  return rows_->Where(place.row) +
         (place.turn < 0 ? "" : ", answer " + std::to_string(place.turn + 1));
}

}  // namespace tandem::training
