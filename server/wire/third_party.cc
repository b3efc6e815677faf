#include "server/wire/third_party.h"

// Embeds the list of third-party code that config/cmake/third_party.cmake writes, as read-only
// data.
asm(".section .rodata.third_party, \"a\", @progbits\n"
    ".globl tandem_third_party_begin\n"
    "tandem_third_party_begin:\n"
    ".incbin \"" TANDEM_THIRD_PARTY_FILE
    "\"\n"
    ".globl tandem_third_party_end\n"
    "tandem_third_party_end:\n"
    ".byte 0\n"
    ".previous\n"
    ".section .note.GNU-stack, \"\", @progbits\n"
    ".previous\n");
extern "C" const char tandem_third_party_begin[];
extern "C" const char tandem_third_party_end[];

namespace tandem::server {

std::string_view ThirdPartyText() {
  return {tandem_third_party_begin,
          static_cast<size_t>(tandem_third_party_end - tandem_third_party_begin)};
}

}  // namespace tandem::server
