#include "engine/io/mapping_faults.h"

#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <string>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

constexpr uintptr_t kFaultPageBytes = 4096;

// Constant-initialized and never destroyed: a fault may come at any time.
constinit std::array<MappingWatch::Slot, MappingWatch::kMaxWatches> g_slots;
constinit std::atomic<size_t> g_n_slots{0};  // slots at or above were never used
constinit std::mutex g_mutex;                // guards g_taken and g_next
constinit std::array<bool, MappingWatch::kMaxWatches> g_taken{};
constinit std::atomic<bool> g_survives{false};  // whether the handler is installed
constinit size_t g_next = 0;                    // start of the search for a free slot
struct sigaction g_previous;                    // written before the handler can run

// Replaces the rest of the range by zeros. A truncation loses all of it, and one mapping per page
// would reach the kernel's limit. mmap is a plain system call, so a signal handler may use it.
bool Repair(MappingWatch::Slot& slot, uintptr_t at, uintptr_t end) {
  const uintptr_t page = at / kFaultPageBytes * kFaultPageBytes;
  const void* mapped = mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  slot.damaged.store(true, std::memory_order_relaxed);
  return true;
}

void OnBusError(int signal, siginfo_t* info, void*) {
  const int error = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool is_fault = info->si_code > 0;  // otherwise a process sent the signal
  const size_t n_slots = is_fault ? g_n_slots.load(std::memory_order_acquire) : 0;
  for (size_t i = 0; i < n_slots; ++i) {
    MappingWatch::Slot& slot = g_slots[i];
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (at >= end || at < slot.begin.load(std::memory_order_relaxed)) continue;
    if (!Repair(slot, at, end)) break;
    errno = error;
    return;
  }
  // Outside watched ranges: restores the earlier action, which the repeated fault or signal then
  // takes.
  sigaction(SIGBUS, &g_previous, nullptr);
  if (!is_fault) raise(signal);
  errno = error;
}

}  // namespace

MappingWatch::Slot* MappingWatch::Take() {
  if (!g_survives.load()) return nullptr;
  const std::lock_guard lock(g_mutex);
  for (size_t tried = 0; tried < kMaxWatches; ++tried) {
    const size_t i = g_next;
    g_next = (g_next + 1) % kMaxWatches;
    if (g_taken[i]) continue;
    g_taken[i] = true;
    if (i >= g_n_slots.load(std::memory_order_relaxed)) {
      g_n_slots.store(i + 1, std::memory_order_release);
    }
    return &g_slots[i];
  }
  throw Error(ErrorCode::kUnavailable, "the process maps " + std::to_string(kMaxWatches) +
                                           " files, which is the limit: unload a model");
}

MappingWatch::MappingWatch(std::span<const std::byte> range) : slot_(Take()) {
  if (slot_ == nullptr) return;
  const auto begin = reinterpret_cast<uintptr_t>(range.data());
  TANDEM_CHECK(begin % kFaultPageBytes == 0 && range.size() % kFaultPageBytes == 0);
  slot_->damaged.store(false, std::memory_order_relaxed);
  slot_->begin.store(begin, std::memory_order_relaxed);
  slot_->end.store(begin + range.size(), std::memory_order_release);
}

MappingWatch::~MappingWatch() {
  if (slot_ == nullptr) return;
  slot_->end.store(0, std::memory_order_release);
  const std::lock_guard lock(g_mutex);
  g_taken[static_cast<size_t>(slot_ - g_slots.data())] = false;
}

void SurviveMappingFaults() {
  static std::once_flag once;
  std::call_once(once, [] {
    sigaction(SIGBUS, nullptr, &g_previous);
    struct sigaction action {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    TANDEM_CHECK(sigaction(SIGBUS, &action, nullptr) == 0);
    g_survives.store(true);
  });
}

}  // namespace tandem::engine
