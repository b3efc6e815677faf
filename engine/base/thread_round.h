#pragma once

#include <chrono>
#include <exception>
#include <thread>

#include "engine/base/attempt.h"
#include "engine/base/out_of_memory.h"

// Rounds of threads that live as long as the server. An exception that leaves such a thread ends
// the process, so each round runs behind a border that needs no memory itself.
namespace tandem {

// Logs round_failed with the name of the round. Writes nothing if memory lacks for the line.
void LogFailedRound(const char* round, const std::exception_ptr& fault) noexcept;

// Runs `action`. Logs its exception, whatever the type, and returns false. `round` names the action
// in the log.
template <class Action>
bool RunRound(const char* round, Action&& action) {
  const std::exception_ptr fault = FaultOf(std::forward<Action>(action));
  if (fault) LogFailedRound(round, fault);
  return !fault;
}

// Repeats `action` until memory suffices for it: for a result that must not be lost, such as the
// end of a job. A failed try must leave its data fit for the next one. Other exceptions pass.
template <class Action>
void UntilMemorySuffices(Action&& action) {
  constexpr std::chrono::milliseconds kPauseWithoutMemory{5};
  while (!HasMemoryFor(action)) std::this_thread::sleep_for(kPauseWithoutMemory);
}

}  // namespace tandem
