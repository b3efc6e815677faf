#pragma once

#include "training/program/program.h"

// The passes that turn a recorded forward into a whole program; for Record and its tests.
namespace tandem::training {

// Makes the feed-forward layers run in chunks of so many rows: what is between their first products
// and their last then lives within a chunk. Throws kUnsupported where there are none.
void ChunkFeedForward(Program* program, int64_t chunk_rows);

// Decides which values need a gradient and where it lives, and writes the backward steps: the
// forward nodes in reverse, except those that have nothing to do.
void AppendBackward(Program* program);

// Does what ActivationSave says to the activation functions, and says which values must not be kept
// for the backward pass: those in whose place something else is, and those of chunks. Throws
// kInvalidArgument naming the layer where a mask would not be enough, or the model has no ReLU.
std::vector<bool> SaveActivations(Program* program, ActivationSave save);

// A decoder layer of a recorded forward: the nodes [first, last), which read `entry` and nothing
// else from outside.
struct Block {
  int32_t entry = -1;  // values
  int32_t exit = -1;   // the next layer's entry, or what follows the layers reads
  int32_t first = 0;
  int32_t last = 0;
};

// Finds the layers in the graph: a layer begins at the last place before its attention where one
// value alone is still needed, the residual stream. The last layer ends likewise at its last Add.
// Empty when the graph has no such places.
std::vector<Block> FindBlocks(const Program& program);

// Values that a policy other than kNone and kAuto does not keep, by index.
std::vector<bool> ChooseDropped(const Program& program, const RematOptions& options);

// Inserts the steps that compute dropped values a second time, each right before the first backward
// step that reads it, directly or through another.
void RemakeDropped(Program* program, const std::vector<bool>& dropped);

// Does what the options say, and keeps none of `dropped`; kAuto throws kResourceExhausted when
// nothing fits.
void Rematerialize(Program* program, const RematOptions& options, const std::vector<bool>& dropped);

// Gives every buffer its lifetime in steps and its place in the arena: largest first, each at the
// lowest offset that is free during its whole life (greedy interval packing).
void AssignArena(Program* program);

}  // namespace tandem::training
