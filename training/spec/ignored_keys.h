#pragma once

#include "training/spec/spec.h"

namespace tandem::training {

// Adds a note for each given key of the optimiser and its schedule that the spec's optimiser or
// schedule does not read. A value that equals the default needs no note: base files list all keys.
void NoteIgnoredKeys(TrainSpec* spec);

}  // namespace tandem::training
