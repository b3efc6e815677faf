#include "training/data/packer.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::training {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

// Positions stay below `max_sequence`, the model's limit.
void Pad(int64_t row_length, int64_t max_sequence, TokenId pad, PackedRow* row) {
  int64_t room = row_length - static_cast<int64_t>(row->tokens.size());
  while (room > 0) {
    const int64_t places = std::min(room, max_sequence);
    for (int64_t p = 0; p < places; ++p) {
      row->tokens.push_back(pad);
      row->positions.push_back(static_cast<int32_t>(p));
      row->targets.push_back(-1);
      row->weights.push_back(0);
      row->samples.push_back(-1);
    }
    row->segment_lengths.push_back(places);
    room -= places;
  }
}

}  // namespace

PackedRow PaddingRow(int64_t row_length, TokenId pad, int64_t max_sequence) {
  PackedRow row;
  Pad(row_length, max_sequence > 0 ? max_sequence : row_length, pad, &row);
  return row;
}

Packer::Packer(const PackerOptions& options, std::function<Sample(int64_t index)> make)
    : options_(options),
      order_{.n = options.n_samples,
             .shuffle = options.shuffle,
             .kind = options.order,
             .seed = options.seed,
             .window = options.shuffle_window,
             .mixture = options.mixture},
      make_(std::move(make)) {
  TANDEM_CHECK(options.row_length > 0 && options.n_samples > 0);
  if (options_.max_sequence <= 0) options_.max_sequence = options.row_length;
  if (options_.max_segments <= 0) options_.max_segments = options.row_length;
  if (options_.packing == Packing::kNone) options_.max_segments = 1;
}

void Packer::Restore(PackerState state) {
  state_ = std::move(state);
  made_.clear();
}

double Packer::epoch() const {
  return static_cast<double>(state_.next) / static_cast<double>(options_.n_samples);
}

const Sample& Packer::Pending(size_t i) {
  const int64_t number = state_.pending[i];
  if (const auto it = made_.find(number); it != made_.end()) return it->second;
  return Keep(number, make_(IndexOf(number)));
}

const Sample& Packer::Keep(int64_t number, Sample sample) {
  if (IsTooLong(sample) && Cuts(Overflow::kTruncateLeft)) {
    KeepEnds(&sample, options_.max_sequence + 1);
  }
  return made_.emplace(number, std::move(sample)).first->second;
}

// A stream has no over-long samples.
bool Packer::Cuts(Overflow how) const {
  return options_.packing != Packing::kConcatThenSplit && options_.overflow == how;
}

int64_t Packer::PlacesOf(const Sample& sample) const {
  if (!sample.is_pair()) return static_cast<int64_t>(sample.tokens.size()) - 1;
  int64_t places = 0;
  for (size_t k = 0; k < 2; ++k) {
    const auto n = static_cast<int64_t>(sample.SequenceEnd(k) - sample.SequenceBegin(k));
    places += std::min(n - 1, options_.max_sequence);
  }
  return places;
}

bool Packer::IsTooLong(const Sample& sample) const {
  return LongestSequence(sample) - 1 >
         (sample.is_pair() ? options_.max_sequence : options_.row_length);
}

// Takes samples until `wanted` are pending or the epochs are over.
void Packer::Fill(size_t wanted) {
  while (state_.pending.size() < wanted) {
    if (options_.n_epochs > 0 && state_.next >= options_.n_epochs * options_.n_samples) return;
    Sample whole = make_(IndexOf(state_.next));
    const int64_t length = LongestSequence(whole);
    const bool too_long = IsTooLong(whole);
    const Sample& sample = Keep(state_.next, std::move(whole));
    state_.pending.push_back(state_.next++);

    if (too_long && Cuts(Overflow::kError)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a sample has " + std::to_string(length) + " tokens, but a row holds only " +
                      std::to_string(options_.max_sequence) +
                      "; set data.overflow to truncate, truncate_left, drop or split");
    }
    if (too_long && (Cuts(Overflow::kTruncate) || Cuts(Overflow::kTruncateLeft))) ++truncated_;
    const bool drop = too_long && Cuts(Overflow::kDrop);
    // Only the kept part of a truncated sample counts.
    const bool is_cut = too_long && Cuts(Overflow::kTruncate);
    const int64_t trained = TrainedTokens(sample, is_cut ? options_.max_sequence + 1 : 0);
    if (!drop && trained > 0) {
      fruitless_ = 0;
      continue;
    }
    dropped_ += drop ? 1 : 0;
    if (++fruitless_ > options_.n_samples) {
      throw Error(ErrorCode::kInvalidArgument, "no sample has a trained token within a row of " +
                                                   std::to_string(options_.row_length));
    }
    made_.erase(state_.pending.back());
    state_.pending.pop_back();
  }
}

// Chooses the pending sample for a row with `room` places left; kNone ends the row.
size_t Packer::Choose(int64_t room) {
  const bool by_fit =
      options_.packing == Packing::kFirstFit || options_.packing == Packing::kBestFit;
  Fill(by_fit ? static_cast<size_t>(options_.window) : 1);
  if (state_.pending.empty()) return kNone;
  // The oldest sample opens every row, so that none waits forever, and a split sample continues.
  if (room == options_.row_length || !by_fit) return 0;

  size_t best = kNone;
  int64_t best_places = 0;
  for (size_t i = 0; i < state_.pending.size(); ++i) {
    const int64_t places = PlacesOf(Pending(i)) - (i == 0 ? state_.offset : 0);
    if (places > room) continue;
    if (options_.packing == Packing::kFirstFit) return i;
    if (best == kNone || places > best_places) {
      best = i;
      best_places = places;
    }
  }
  return best;
}

// A segment: `places` tokens of the sample from `from`, each with its successor as target.
void Packer::AddPlaces(const Sample& sample, size_t from, int64_t places, int64_t number,
                       PackedRow* row) const {
  for (int64_t p = 0; p < places; ++p) {
    const size_t at = from + static_cast<size_t>(p);
    const bool trained = sample.trained[at + 1] != 0;
    row->tokens.push_back(sample.tokens[at]);
    row->positions.push_back(static_cast<int32_t>(p));
    row->targets.push_back(trained ? sample.tokens[at + 1] : -1);
    row->weights.push_back(trained ? 1.0f : 0.0f);
    row->samples.push_back(number);
  }
  row->segment_lengths.push_back(places);
}

void Packer::AddPair(size_t i, PackedRow* row) {
  const Sample& sample = Pending(i);
  const int64_t number = state_.pending[i];
  row->pairs.push_back({static_cast<int64_t>(row->segment_lengths.size()), IndexOf(number)});
  for (size_t k = 0; k < 2; ++k) {
    const auto n = static_cast<int64_t>(sample.SequenceEnd(k) - sample.SequenceBegin(k));
    AddPlaces(sample, sample.SequenceBegin(k), std::min(n - 1, options_.max_sequence), number, row);
  }
}

// Appends the sample, or its part that fits. Returns true when the sample is used up.
bool Packer::AddSegment(size_t i, PackedRow* row) {
  const Sample& sample = Pending(i);
  if (sample.is_pair()) {
    AddPair(i, row);
    return true;
  }
  const int64_t from = i == 0 ? state_.offset : 0;
  const int64_t room = options_.row_length - static_cast<int64_t>(row->tokens.size());
  const int64_t places = std::min(room, PlacesOf(sample) - from);
  AddPlaces(sample, static_cast<size_t>(from), places, state_.pending[i], row);

  const bool cuts =
      options_.packing == Packing::kConcatThenSplit || options_.overflow == Overflow::kSplit;
  if (cuts && from + places < PlacesOf(sample)) {
    TANDEM_CHECK(i == 0);  // only the oldest can exceed the room of a row
    state_.offset = from + places;
    return false;
  }
  return true;
}

bool Packer::Next(PackedRow* row) {
  *row = {};
  while (static_cast<int64_t>(row->tokens.size()) < options_.row_length &&
         static_cast<int64_t>(row->segment_lengths.size() - row->pairs.size()) <
             options_.max_segments) {
    const size_t i = Choose(options_.row_length - static_cast<int64_t>(row->tokens.size()));
    if (i == kNone) break;
    if (!AddSegment(i, row)) continue;
    made_.erase(state_.pending[i]);
    state_.pending.erase(state_.pending.begin() + static_cast<std::ptrdiff_t>(i));
    if (i == 0) state_.offset = 0;
  }
  if (row->tokens.empty()) return false;
  Pad(options_.row_length, options_.max_sequence, options_.pad, row);
  return true;
}

}  // namespace tandem::training
