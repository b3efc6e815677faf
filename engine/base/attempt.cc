#include "engine/base/attempt.h"

#include <new>
#include <system_error>

#include "engine/base/out_of_memory.h"

namespace tandem {
namespace {

// Made before memory can run out. A copy allocates nothing, because the reason is short.
const Error kNotEnoughMemory =
    Error(ErrorCode::kUnavailable, "not enough memory").WithReason("out_of_memory");

// Throws std::bad_alloc if that is the fault, or if there is no memory for the description.
Error Describe(const std::exception_ptr& fault) {
  try {
    std::rethrow_exception(fault);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::system_error& error) {
    // std::thread throws EAGAIN if there is no memory for the thread's stack.
    if (error.code() == std::errc::resource_unavailable_try_again ||
        error.code() == std::errc::not_enough_memory) {
      return kNotEnoughMemory;
    }
    return Error(ErrorCode::kInternal, error.what());
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    return Error(ErrorCode::kInternal, "unknown exception");
  }
}

}  // namespace

Error ToError(const std::exception_ptr& fault) noexcept {
  Error error = kNotEnoughMemory;
  HasMemoryFor([&] { error = Describe(fault); });
  return error;
}

}  // namespace tandem
