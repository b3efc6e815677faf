#include "engine/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace tandem::engine {
namespace {

template <auto kFree>
struct Freer {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

// PCRE2 needs these per thread. All patterns share them.
struct ThreadState {
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};
  JitStack stack{pcre2_jit_stack_create(32 << 10, 4 << 20, nullptr)};

  ThreadState() {
    TANDEM_CHECK(context && data);
    pcre2_set_heap_limit(context.get(), 256 << 10);  // KiB
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};
ThreadState& Thread() {
  thread_local ThreadState state;
  return state;
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[160];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return std::to_string(code);
  return reinterpret_cast<const char*>(buffer);
}

[[noreturn]] void Refuse(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, where + ": " + what + " in a pattern is not supported");
}

// A greedy run may give back every character once, in each of a few alternatives. A pattern above
// this limit for one match is not linear.
uint32_t MatchLimit(size_t text_bytes) {
  constexpr size_t kBase = 10'000'000, kPerByte = 16;
  return static_cast<uint32_t>(
      std::min<size_t>(kBase + std::min(text_bytes, size_t{UINT32_MAX}) * kPerByte, UINT32_MAX));
}

}  // namespace

struct Pattern::Compiled {
  Code code;
  bool jit = false;
  std::string where;
};

std::string TranslatePattern(std::string_view pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      switch (escaped) {
        case 's':
          out += "\\p{White_Space}";
          break;
        case 'S':
          out += "\\P{White_Space}";
          break;
        case 'w':
          out += in_class ? "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
                          : "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
          break;
        case 'W':
          if (in_class) Refuse(where, "\\W inside a class");
          out += "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
          break;
        // These differ between the two engines.
        case 'b':
        case 'B':
        case 'h':
        case 'H':
        case 'R':
        case 'X':
        case 'K':
        case 'G':
        case 'C':
        case 'Q':
        case 'E':
          Refuse(where, std::string("\\") + escaped);
        default:
          out += c;
          out += escaped;
      }
    } else if (!in_class && pattern.substr(i).starts_with("(?")) {
      // Inline options: `m` means "dot matches newline" in Ruby's syntax and "lines" in Perl's.
      for (size_t j = i + 2; j < pattern.size() && (std::isalpha(pattern[j]) || pattern[j] == '-');
           ++j) {
        if (pattern[j] != 'i' && pattern[j] != '-')
          Refuse(where, "an inline option other than (?i)");
      }
      out += c;
    } else if (in_class && c == '[') {
      // Oniguruma reads a nested set here, PCRE2 a literal bracket. POSIX names are equal in both.
      if (i + 1 >= pattern.size() || pattern[i + 1] != ':') Refuse(where, "a nested set");
      const size_t close = pattern.find(":]", i);
      if (close == std::string_view::npos) Refuse(where, "a nested set");
      out += pattern.substr(i, close + 2 - i);
      i = close + 1;
    } else if (in_class && c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      Refuse(where, "set intersection");
    } else if (!in_class && c == '[') {
      in_class = true;
      out += c;
      // A set that closes at once starts with a literal bracket in PCRE2 and is an error in
      // Oniguruma.
      size_t first = i + 1;
      if (first < pattern.size() && pattern[first] == '^') ++first;
      if (first < pattern.size() && pattern[first] == ']') Refuse(where, "an empty set");
    } else {
      if (in_class && c == ']') in_class = false;
      out += c;
    }
  }
  return out;
}

Pattern Pattern::Compile(std::string_view pattern, const std::string& where) {
  const std::string translated = TranslatePattern(pattern, where);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  TANDEM_CHECK(context);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  pcre2_set_max_pattern_length(context.get(), 1 << 20);

  auto compiled = std::make_shared<Compiled>();
  compiled->where = where;
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE, because ^ and $ match at lines in Oniguruma's Ruby syntax. Only PCRE2 has (*VERBS).
  if (translated.starts_with("(*")) Refuse(where, "(*VERB)");
  compiled->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, context.get()));
  if (!compiled->code) {
    throw Error(ErrorCode::kUnsupported,
                where + ": the pattern is not supported: " + PcreMessage(error));
  }
  const int jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  compiled->jit = jit == 0;
  if (!compiled->jit) {
    spdlog::warn("event=tokenizer_jit_refused where=\"{}\" reason=\"{}\"", where, PcreMessage(jit));
  }
  return Pattern(std::move(compiled));
}

bool Pattern::may_match_nothing() const {
  uint32_t answer = 0;
  TANDEM_CHECK(pcre2_pattern_info(compiled_->code.get(), PCRE2_INFO_MATCHEMPTY, &answer) == 0);
  return answer != 0;
}

std::optional<Pattern::Match> Pattern::Find(std::string_view text, size_t from) const {
  ThreadState& thread = Thread();
  pcre2_set_match_limit(thread.context.get(), MatchLimit(text.size()));
  const auto match = [&](uint32_t options) {
    return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), from, PCRE2_NO_UTF_CHECK | options, thread.data.get(),
                       thread.context.get());
  };
  int result = match(0);
  // The interpreter keeps its backtracking points on the heap, so it can go deeper.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                compiled_->where + ": the pattern failed on this text: " + PcreMessage(result));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(thread.data.get());
  // Only \K could report an earlier match, and Compile refuses it.
  TANDEM_DCHECK(bounds[0] >= from && bounds[0] <= bounds[1]);
  return Match{bounds[0], bounds[1]};
}

}  // namespace tandem::engine
