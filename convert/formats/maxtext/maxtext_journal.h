#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/formats/maxtext/maxtext_numbers.h"
#include "convert/orbax/orbax_writer.h"

namespace tandem::convert {

// Journal notes of a conversion to MaxText (journal.h): one line of text each. With them a later
// conversion resumes and ends with the same bytes. The parser treats a note as untrusted.

// Random ids and the time, drawn at the start of a conversion.
struct MaxTextStamps {
  OrbaxStamp items = NewOrbaxStamp();
  OrbaxStamp exact = NewOrbaxStamp();  // has the same time
};
std::string NoteOf(const MaxTextStamps& stamps);
std::optional<MaxTextStamps> ParseStamps(const std::string& note);

// A parameter that has been written.
struct WrittenLeaf {
  engine::DType dtype = engine::DType::kF32;  // f32, bf16
  // Loss that bf16 would have caused, for a leaf kept in f32 because of it; else zero.
  Loss bf16_loss = {};
  StoredArray values = {};
  // Entries of `exact/` for the leaf's tensors.
  struct Exact {
    std::string name;
    engine::DType dtype = engine::DType::kI8;
    int64_t corrected = 0;  // corrected numbers; 0 for vocabulary rows
    StoredArray values = {};
  };
  std::vector<Exact> exact = {};
};
std::string NoteOf(const WrittenLeaf& leaf);
std::optional<WrittenLeaf> ParseLeaf(const std::string& note);

}  // namespace tandem::convert
