#pragma once

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/base/error.h"

// Runs a callable where an exception must not simply pass. That is the border of a thread, a
// request, a job or a library, and a place that adds context or falls back. No other code catches.
//
//   thread, callback   FaultOf        the exception itself, to keep or to rethrow elsewhere
//   border             Attempt        every exception, as an Error
//   fall back          ErrorOf        only an Error, or only an Error with one of some codes
//                      ErrorOtherThan only an Error without one of some codes
//   library            ExceptionOf    only one exception type
//   add context        WithContext    passes the result on, replaces a passing Error
//   roll back          UndoOnFailure  passes the result on, undoes work before an exception passes
//
// All of them run the action once, on the calling thread. Exceptions that a function does not
// handle pass unchanged, std::bad_alloc included.
namespace tandem {

// Error that describes `fault`, which is not null. An Error keeps all but its derived type. A
// failed allocation and a thread that cannot start become kUnavailable with the reason
// "out_of_memory". Other exceptions become kInternal. Never throws, even without memory.
Error ToError(const std::exception_ptr& fault) noexcept;

// Returns null if the action returns.
template <class Action>
std::exception_ptr FaultOf(Action&& action) {
  try {
    std::forward<Action>(action)();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

template <class Action>
std::optional<Error> Attempt(Action&& action) noexcept {
  if (const std::exception_ptr fault = FaultOf(std::forward<Action>(action))) return ToError(fault);
  return std::nullopt;
}

// Handles only exceptions of type Exception for which `handles` returns true. A derived exception
// is sliced in the result, but passes unchanged where `handles` refuses it.
template <class Exception, class Handles, class Action>
std::optional<Exception> ExceptionIf(Handles&& handles, Action&& action) {
  try {
    std::forward<Action>(action)();
    return std::nullopt;
  } catch (const Exception& exception) {
    if (!handles(exception)) throw;
    return exception;
  }
}

template <class Exception, class Action>
std::optional<Exception> ExceptionOf(Action&& action) {
  return ExceptionIf<Exception>([](const Exception&) { return true; },
                                std::forward<Action>(action));
}

template <class Action>
std::optional<Error> ErrorOf(Action&& action) {
  return ExceptionOf<Error>(std::forward<Action>(action));
}

template <class Action>
std::optional<Error> ErrorOf(std::initializer_list<ErrorCode> codes, Action&& action) {
  return ExceptionIf<Error>(
      [codes](const Error& error) {
        return std::find(codes.begin(), codes.end(), error.code()) != codes.end();
      },
      std::forward<Action>(action));
}

// Handles every Error but those with one of the codes, for example kCancelled.
template <class Action>
std::optional<Error> ErrorOtherThan(std::initializer_list<ErrorCode> codes, Action&& action) {
  return ExceptionIf<Error>(
      [codes](const Error& error) {
        return std::find(codes.begin(), codes.end(), error.code()) == codes.end();
      },
      std::forward<Action>(action));
}

// Copy of `error` whose message begins with `context`, usually a name and ": ".
inline Error AddContext(const std::string& context, const Error& error) {
  return Error(error.code(), context + error.what())
      .WithParam(error.param())
      .WithReason(error.reason());
}

// Returns the action's result. `context` is a string for AddContext, or a callable that takes the
// const Error& and returns the Error to throw instead.
template <class Context, class Action>
decltype(auto) WithContext(const Context& context, Action&& action) {
  try {
    return std::forward<Action>(action)();
  } catch (const Error& error) {
    if constexpr (std::is_invocable_v<const Context&, const Error&>) {
      throw context(error);
    } else {
      throw AddContext(context, error);
    }
  }
}

// Returns the action's result. `undo` runs before an exception passes, and must not throw.
template <class Action, class Undo>
decltype(auto) UndoOnFailure(Action&& action, Undo&& undo) {
  try {
    return std::forward<Action>(action)();
  } catch (...) {
    std::forward<Undo>(undo)();
    throw;
  }
}

}  // namespace tandem
