#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "training/data/order/sample_order.h"
#include "training/data/sample.h"

namespace tandem::training {

enum class Packing {
  kNone,             // one sample per row
  kConcatThenSplit,  // samples follow each other and are split where a row ends
  kFirstFit,         // whole samples; the first pending sample that fits
  kBestFit,          // whole samples; the longest pending sample that fits
};
// Reaction to samples longer than a row. Checkpoints store the numbers.
enum class Overflow { kTruncate, kDrop, kError, kSplit, kTruncateLeft };

struct PackerOptions {
  int64_t row_length = 0;
  int64_t max_sequence = 0;  // places per sequence of a pair; 0: row_length
  int64_t max_segments = 0;  // per row; a pair counts as one
  Packing packing = Packing::kBestFit;
  Overflow overflow = Overflow::kTruncate;
  bool shuffle = true;  // the following until mixture: see SampleOrder
  OrderKind order = OrderKind::kPermuted;
  uint64_t seed = 0;
  int64_t n_samples = 0;
  int64_t shuffle_window = 0;
  std::vector<MixturePart> mixture = {};
  int64_t n_epochs = 0;  // 0: no end
  int64_t window = 64;   // pending samples that first and best fit consider
  TokenId pad = 0;
};

// The position of a packer, complete for an exact resume. Samples are counted over all epochs:
// number g is sample SampleOrder::IndexOf(g) of the corpus.
struct PackerState {
  int64_t next = 0;              // number of the next sample
  std::vector<int64_t> pending;  // taken, not yet in a row, oldest first
  int64_t offset = 0;            // places of pending[0] already used (split samples)

  bool operator==(const PackerState&) const = default;
};

// A pair of answers in a row: two consecutive segments.
struct PackedPair {
  int64_t segment = 0;  // of the preferred answer
  int64_t index = 0;    // of the sample in its source
};

// `row_length` tokens: segments, then padding in segments of at most max_sequence. Within a
// segment, a token's target is its successor in the sample; positions begin at 0.
struct PackedRow {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<TokenId> targets;  // -1 where the token is not trained
  std::vector<float> weights;    // 1 or 0
  std::vector<int64_t> samples;  // number of the sample; -1 for padding
  std::vector<int64_t> segment_lengths;
  std::vector<PackedPair> pairs;
};

// A row of padding only, to complete the last batch of the last epoch.
PackedRow PaddingRow(int64_t row_length, TokenId pad, int64_t max_sequence = 0);

// Packs samples into rows. A sample of n tokens takes n - 1 places, because its last token is only
// a target. Both sequences of a pair stay whole (or cut to max_sequence) and in one row.
// Deterministic: depends on options, samples and state only.
class Packer {
 public:
  // `make` returns a sample by its index in the corpus.
  Packer(const PackerOptions& options, std::function<Sample(int64_t index)> make);

  // Returns the next row, or false after the last epoch. Throws kInvalidArgument for an over-long
  // sample with Overflow::kError. Throws it too when a whole epoch has no token to train that fits.
  bool Next(PackedRow* row);

  const PackerState& state() const { return state_; }
  void Restore(PackerState state);

  double epoch() const;  // passes over the corpus
  int64_t dropped() const { return dropped_; }
  int64_t truncated() const { return truncated_; }

 private:
  int64_t IndexOf(int64_t number) const { return order_.IndexOf(number); }
  const Sample& Keep(int64_t number, Sample sample);
  const Sample& Pending(size_t i);
  bool Cuts(Overflow how) const;
  int64_t PlacesOf(const Sample& sample) const;
  bool IsTooLong(const Sample& sample) const;
  void Fill(size_t wanted);
  size_t Choose(int64_t room);
  bool AddSegment(size_t i, PackedRow* row);
  void AddPair(size_t i, PackedRow* row);
  void AddPlaces(const Sample& sample, size_t from, int64_t places, int64_t number,
                 PackedRow* row) const;

  PackerOptions options_;
  SampleOrder order_;
  std::function<Sample(int64_t)> make_;
  PackerState state_;
  std::map<int64_t, Sample> made_;  // the samples of state_.pending, by number
  int64_t fruitless_ = 0;           // consecutive samples without a token to train
  int64_t dropped_ = 0;
  int64_t truncated_ = 0;
};

}  // namespace tandem::training
