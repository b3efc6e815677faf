#include <string>

#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"

// Embeds server/openapi.json, which is edited by hand, as read-only data. The .note.GNU-stack
// section keeps the linker from making the stack executable.
asm(".section .rodata.openapi, \"a\", @progbits\n"
    ".globl tandem_openapi_begin\n"
    "tandem_openapi_begin:\n"
    ".incbin \"" TANDEM_OPENAPI_FILE
    "\"\n"
    ".globl tandem_openapi_end\n"
    "tandem_openapi_end:\n"
    ".byte 0\n"
    ".previous\n"
    ".section .note.GNU-stack, \"\", @progbits\n"
    ".previous\n");
extern "C" const char tandem_openapi_begin[];
extern "C" const char tandem_openapi_end[];

namespace tandem::server {

std::string_view OpenApiText() {
  return {tandem_openapi_begin, static_cast<size_t>(tandem_openapi_end - tandem_openapi_begin)};
}

namespace {

// GET /openapi.json
void OpenApi(const HandlerContext&, Request, ResponseWriter writer) {
  writer.Json(200, std::string(OpenApiText()));
}

}  // namespace

std::span<const Endpoint> OpenApiEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/openapi.json", OpenApi, Access::kOpen},
  };
  return kEndpoints;
}

}  // namespace tandem::server
