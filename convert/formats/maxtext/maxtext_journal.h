#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/formats/maxtext/maxtext_numbers.h"
#include "convert/orbax/orbax_writer.h"

namespace tandem::convert {

// What a conversion to MaxText writes down of itself (journal.h), so that another goes on with it
// and ends with the same bytes: one line of text, which may be anybody's when it is read.

// What is drawn at the beginning.
struct MaxTextStamps {
  OrbaxStamp items = NewOrbaxStamp();
  OrbaxStamp exact = NewOrbaxStamp();  // of the same time
};
std::string NoteOf(const MaxTextStamps& stamps);
std::optional<MaxTextStamps> ParseStamps(const std::string& note);

// A parameter that is written.
struct WrittenLeaf {
  engine::DType dtype = engine::DType::kF32;  // f32, bf16
  // Of bf16, for one that stays in f32 because of it; none of others.
  Loss bf16_loss = {};
  StoredArray values = {};
  // What `exact/` has of its tensors.
  struct Exact {
    std::string name;
    engine::DType dtype = engine::DType::kI8;
    int64_t corrected = 0;  // numbers; of rows beyond the vocabulary 0
    StoredArray values = {};
  };
  std::vector<Exact> exact = {};
};
std::string NoteOf(const WrittenLeaf& leaf);
std::optional<WrittenLeaf> ParseLeaf(const std::string& note);

}  // namespace tandem::convert
