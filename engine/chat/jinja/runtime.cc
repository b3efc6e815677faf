#include "engine/chat/jinja/runtime.h"

namespace tandem::engine {

std::string DescribeFault(SourcePosition at, const std::string& what) {
  return "chat template line " + std::to_string(at.line) + ", column " + std::to_string(at.column) +
         ": " + what;
}

void Runtime::Fail(const std::string& what) const {
  // Every fault of a rendering is a fault of the messages given to the template.
  throw Error(ErrorCode::kInvalidArgument, DescribeFault(at_, what)).WithParam("messages");
}

void Runtime::FailUnsupported(const std::string& what) const {
  throw Error(ErrorCode::kUnsupported, DescribeFault(at_, what)).WithParam("messages");
}

void Runtime::FailSteps() const {
  Fail("rendering takes more than " + std::to_string(kMaxSteps) + " steps");
}

void Runtime::FailWork() const {
  Fail("rendering writes or reads more than " + std::to_string(kMaxWorkBytes) + " bytes");
}

}  // namespace tandem::engine
