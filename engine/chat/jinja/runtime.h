#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/error.h"

namespace tandem::engine {

// Limits of the sandbox. A rendering of 4096 ordinary messages stays below a tenth of each.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr size_t kMaxTextBytes = size_t{8} << 20;    // of one string, and of the output
inline constexpr size_t kMaxWorkBytes = size_t{256} << 20;  // written or scanned, in total
inline constexpr int64_t kMaxSteps = 4'000'000;             // evaluated nodes and visited elements
inline constexpr int64_t kMaxRange = 100'000;    // elements of range(), as Jinja's sandbox
inline constexpr int kMaxValueDepth = 100;       // lists in lists
inline constexpr int kMaxEvalDepth = 600;        // nodes under evaluation at one time
inline constexpr int kMaxSyntaxDepth = 200;      // brackets and blocks in the source
inline constexpr int kMaxExpressionDepth = 200;  // a + b + c + ... is a tree this deep

// A position in a template's source. Both count from 1; columns count bytes.
struct SourcePosition {
  uint32_t line = 1;
  uint32_t column = 1;
};

// "chat template line 3, column 7: <what>"
std::string DescribeFault(SourcePosition at, const std::string& what);

// One rendering's budgets and its current position in the source. Every operation on values takes a
// Runtime, charges it first, and reports faults through it. Not thread-safe: each rendering has its
// own.
class Runtime {
 public:
  // `now_unix_s` is the time of strftime_now.
  explicit Runtime(int64_t now_unix_s) : now_unix_s_(now_unix_s) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  void Step() {
    if (++steps_ > kMaxSteps) FailSteps();
  }
  // Charges bytes before they are written or scanned.
  void Work(size_t bytes) {
    if (bytes > kMaxWorkBytes - work_bytes_) FailWork();
    work_bytes_ += bytes;
  }

  void set_position(SourcePosition at) { at_ = at; }
  int64_t now_unix_s() const { return now_unix_s_; }

  // Throws kInvalidArgument with the current position.
  [[noreturn]] void Fail(const std::string& what) const;
  // Throws kUnsupported with the current position: the template needs a feature that the sandbox
  // lacks.
  [[noreturn]] void FailUnsupported(const std::string& what) const;

  // Held during the evaluation of one node: bounds recursion before the thread's stack overflows.
  class DepthGuard {
   public:
    explicit DepthGuard(Runtime& rt) : rt_(rt) {
      if (++rt_.depth_ > kMaxEvalDepth) {
        --rt_.depth_;
        rt_.Fail("the template nests or recurses too deeply");
      }
    }
    ~DepthGuard() { --rt_.depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    Runtime& rt_;
  };

 private:
  [[noreturn]] void FailSteps() const;
  [[noreturn]] void FailWork() const;

  int64_t now_unix_s_;
  int64_t steps_ = 0;
  size_t work_bytes_ = 0;
  int depth_ = 0;
  SourcePosition at_;
};

}  // namespace tandem::engine
