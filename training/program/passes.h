#pragma once

#include "training/program/program.h"

// The passes that turn a recorded forward into a whole program; for Record and its tests.
namespace tandem::training {

// Decides which values need a gradient and where it lives, and writes the backward steps: the
// forward nodes in reverse, except those that have nothing to do.
void AppendBackward(Program* program);

// Gives every buffer its lifetime in steps and its place in the arena: largest first, each at the
// lowest offset that is free during its whole life (greedy interval packing).
void AssignArena(Program* program);

}  // namespace tandem::training
