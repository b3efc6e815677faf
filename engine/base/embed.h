#pragma once

#include <cstddef>

// Puts a file into the program's read-only data, between `symbol_begin` and `symbol_end`, aligned
// so that tensors can be read in place. `path` is a string literal; the build lists the file among
// the object's dependencies. Use it outside namespaces. A byte 0 follows the file. The stack note
// keeps the object from requesting an executable stack.
#define TANDEM_EMBED(symbol, path)                    \
  asm(".section .rodata.embedded, \"a\", @progbits\n" \
      ".balign 64\n"                                  \
      ".globl " #symbol "_begin\n" #symbol            \
      "_begin:\n"                                     \
      ".incbin \"" path                               \
      "\"\n"                                          \
      ".globl " #symbol "_end\n" #symbol              \
      "_end:\n"                                       \
      ".byte 0\n"                                     \
      ".previous\n"                                   \
      ".section .note.GNU-stack, \"\", @progbits\n"   \
      ".previous\n");                                 \
  extern "C" const std::byte symbol##_begin[];        \
  extern "C" const std::byte symbol##_end[]
