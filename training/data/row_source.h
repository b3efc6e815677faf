#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/thread_pool.h"
#include "training/data/example.h"
#include "training/data/packer.h"
#include "training/data/sample_encoder.h"
#include "training/data/sample_source.h"

namespace tandem::training {

enum class OnBadRow { kError, kSkip };

struct RowOptions {
  ExampleOptions example;
  Turns turns = Turns::kAuto;
  OnBadRow on_bad_row = OnBadRow::kError;
  int64_t max_tokens = 0;         // limit of a row, for pairs per sequence; 0: no limit
  int64_t max_prompt_tokens = 0;  // for pairs, see JoinPair; 0: no limit
  // Reaction to longer samples. kTruncate and kTruncateLeft count only the kept tokens as trained,
  // kDrop omits the samples, kError makes their rows bad, kSplit keeps them whole.
  Overflow overflow = Overflow::kSplit;
  bool keep_lengths = false;  // lengths and hashes of all samples, for statistics: 12 bytes each
  // Open calls it before each row, from any thread of its pool. True ends Open with kCancelled.
  // EncoderOptions::is_cancelled also ends Open, within a row.
  std::function<bool()> is_cancelled = {};
  // Open calls it before each row. True ends the check there, and the report covers the rows before
  // it. It also decides about a row that EncoderOptions::is_cancelled has ended.
  std::function<bool()> is_enough = {};
  bool may_be_empty = false;  // Open also returns a source without samples
};

struct BadRow {
  std::string where;  // "line 7"
  std::string reason;
};

// The findings of the check of all rows.
struct DataReport {
  static constexpr size_t kMaxListed = 50;

  int64_t rows = 0;
  int64_t checked = 0;  // rows that the check has read; fewer than `rows` if is_enough ended it
  int64_t samples = 0;  // samples to train on
  int64_t bad_rows = 0;
  int64_t split_rows = 0;      // with Turns::kAuto: rows that became one sample per answer, see
                               // Turns
  std::vector<BadRow> listed;  // the first kMaxListed
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  int64_t longest = 0;
  int64_t over_length = 0;  // samples longer than max_tokens; kDrop omits them
  int64_t zero_loss = 0;    // omitted samples: truncation removes all their trained tokens
  uint64_t pairs_hash = 0;  // of all pairs in order; 0 without pairs
  std::vector<int32_t> lengths;
  std::vector<uint64_t> hashes;

  // The listed bad rows as lines of text, and the number of further ones.
  std::string BadRows(const std::string& file) const;
};

// Hash of tokens and mask; equal for equal samples.
uint64_t HashOf(const Sample& sample);

// The rows of a file as samples. Open reads, renders and tokenises every row, so that none can fail
// later, and reports all faults at once.
class RowSource final : public SampleSource {
 public:
  // Called for every kept sample, in order, from the caller's thread.
  using Visit = std::function<void(const Sample& sample)>;

  // Throws kDataLoss with the bad rows (the first 50) unless on_bad_row is kSkip, and when no
  // sample remains. Fills `report` in either case. Borrows the pool during the call, and the
  // tokenizer through the encoder.
  static std::unique_ptr<RowSource> Open(std::shared_ptr<const RowFile> rows,
                                         std::shared_ptr<const SampleEncoder> encoder,
                                         const RowOptions& options, ThreadPool& pool,
                                         DataReport* report, const Visit& visit = {});

  // Skips the check. REQUIRES: an earlier check found every row to be one sample.
  static std::unique_ptr<RowSource> OpenChecked(std::shared_ptr<const RowFile> rows,
                                                std::shared_ptr<const SampleEncoder> encoder,
                                                const RowOptions& options);

  // Whether sample i is row i.
  bool is_every_row() const { return places_.empty() && n_samples_ == rows_->size(); }
  int64_t size() const override { return n_samples_; }
  Sample Make(int64_t i) const override;
  std::string Where(int64_t i) const override;

 private:
  // A sample: a row, or one answer of a row that is split.
  struct Place {
    int64_t row = 0;
    int32_t turn = -1;  // -1: the whole row
  };
  struct Checked;

  RowSource(std::shared_ptr<const RowFile> rows, std::shared_ptr<const SampleEncoder> encoder,
            const RowOptions& options);
  void CheckAll(ThreadPool& pool, DataReport* report, const Visit& visit);
  Checked Check(int64_t row) const;
  bool IsCancelled() const;
  void Count(int64_t row, const Checked& checked, DataReport* report, const Visit& visit);
  bool IsKept(const Sample& sample, DataReport* report) const;
  void Keep(const Place& place);
  Place PlaceOf(int64_t i) const;
  void MakeAll(int64_t row, Checked* checked) const;
  Sample Encode(const Example& example) const;
  Sample MakeTurn(const Example& example, int32_t turn) const;

  std::shared_ptr<const RowFile> rows_;
  std::shared_ptr<const SampleEncoder> encoder_;
  RowOptions options_;
  int64_t n_samples_ = 0;
  // Empty while sample i is row i, which is the usual case.
  std::vector<Place> places_;
};

}  // namespace tandem::training
