#include "engine/chat/answers/call_grammar.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/chat/answers/argument_grammar.h"
#include "engine/chat/answers/declared_tools.h"
#include "engine/chat/answers/lark_text.h"

namespace tandem::engine {
namespace {

// The keys with which a JSON object begins like a call, as call bodies read it.
constexpr std::string_view kCallKeys = "\"(name|type|id|arguments|parameters)\"";

std::string Alternatives(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    out += out.empty() ? "" : " | ";
    out += part;
  }
  return out;
}

class Builder {
 public:
  Builder(const std::vector<CallableTool>& tools, const CallGrammarOptions& options)
      : options_(options), format_(*options.format), raw_(RawTools(tools)) {
    std::vector<std::string> marks;
    for (const CallableTool* tool : raw_) marks.push_back(RawInputMark(tool->name));
    for (const CallableTool& tool : tools) {
      if (!tool.input_grammar) quoted_.push_back(&tool);
    }
    raw_marks_ = std::move(marks);
    is_parallel_ = options.is_parallel && format_.is_parallel;
  }

  std::string Build() {
    std::string rest =
        options_.answer.empty() && !options_.is_forced ? TextAndCalls() : CallsOnly();
    std::string start = Thought() + " " + lark_.Rule(rest);
    // The limit of an answer may lie within its thought, and so may its end.
    if (options_.answer.empty() && !options_.is_forced)
      start = Alternatives({start, OpenThought()});
    return lark_.Finish(start);
  }

 private:
  using Lead = std::function<void(LarkSequence&)>;

  static std::vector<const CallableTool*> RawTools(const std::vector<CallableTool>& tools) {
    std::vector<const CallableTool*> out;
    for (const CallableTool& tool : tools) {
      if (tool.input_grammar) out.push_back(&tool);
    }
    return out;
  }

  void AddMark(std::string_view mark, LarkSequence& out) const {
    const MarkToken token = options_.find_mark(mark);
    if (token.ends_answer) return;
    token.id ? out.Token(*token.id) : out.Text(mark);
  }
  bool IsToken(std::string_view mark) const { return options_.find_mark(mark).id.has_value(); }

  // ---- Thoughts

  bool may_think() const {
    return options_.reasoning && options_.reasoning != ReasoningSplitter::State::kAnswering;
  }
  bool must_open() const { return options_.reasoning == ReasoningSplitter::State::kUndecided; }

  // A regex of the beginning of a thought, where its mark is letters.
  std::string ThinkBeginning() const { return std::string(kLayout) + RegexOf(kThinkOpen); }

  void AddOpenMark(LarkSequence& out) {
    if (!must_open()) return;
    if (!IsToken(kThinkOpen)) {
      out.Regex(ThinkBeginning());
    } else {
      out.Part(lark_.Terminal("/[ \\t\\r\\n]+/") + "?").Token(*options_.find_mark(kThinkOpen).id);
    }
  }

  std::string ThoughtText() { return lark_.Terminal(TextWithout(Marks({kThinkClose}))) + "?"; }

  // A thought with both of its marks; empty if none may stand here.
  std::string Thought() {
    if (!may_think()) return "";
    LarkSequence out;
    const bool is_text = !IsToken(kThinkClose) && !(must_open() && IsToken(kThinkOpen));
    if (is_text) {
      const std::string open = must_open() ? ThinkBeginning() : "";
      out.Part(lark_.Lazy("/" + open + std::string(kAnyText) + RegexOf(kThinkClose) + "/"));
    } else {
      AddOpenMark(out);
      if (IsToken(kThinkClose)) {
        out.Part(ThoughtText()).Token(*options_.find_mark(kThinkClose).id);
      } else {
        out.Part(lark_.Lazy("/" + std::string(kAnyText) + RegexOf(kThinkClose) + "/"));
      }
    }
    // Models write line breaks behind a thought. Readers of calls skip them.
    const std::string layout = options_.is_forced ? " /\\n{1,2}/?" : "";
    return lark_.Rule(out.str() + layout) + (must_open() ? "?" : "");
  }

  std::string OpenThought() {
    if (!may_think()) return "";
    LarkSequence out;
    AddOpenMark(out);
    return out.Part(ThoughtText()).str();
  }

  // ---- Text

  static std::vector<std::string> Marks(std::initializer_list<std::string_view> marks) {
    return {marks.begin(), marks.end()};
  }

  // A text cannot begin so, because its reader would take it for a thought or a call.
  std::vector<std::string> ForbiddenBeginnings() const {
    std::vector<std::string> out;
    if (must_open()) out.push_back(ThinkBeginning());
    if (format_.style == CallStyle::kHarmony) out.push_back(std::string(kLayout) + "to=");
    if (!format_.only_at_beginning) return out;
    const std::string layout(kLayout);
    if (!format_.opening.empty()) out.push_back(layout + RegexOf(format_.opening));
    if (format_.style == CallStyle::kJson) {
      out.push_back(layout + "(\\[" + layout + ")?\\{" + layout + std::string(kCallKeys));
    }
    for (const CallableTool* tool : quoted_) {
      if (format_.style != CallStyle::kPythonic) break;
      out.push_back(layout + "\\[" + layout + RegexOf(tool->name) + "\\(");
    }
    return out;
  }

  // Text without a call. `mark`: letters that begin one.
  std::string Text(std::string_view mark = {}) {
    std::vector<std::string> marks = raw_marks_;
    if (!mark.empty()) marks.emplace_back(mark);
    return lark_.Terminal(TextWithout(marks, ForbiddenBeginnings())) + "?";
  }

  // Text up to letters that begin a call, and those letters.
  std::string TextBefore(std::string_view mark) {
    std::string body = "/" + std::string(kAnyText) + RegexOf(mark) + "/";
    for (const std::string& begin : ForbiddenBeginnings()) {
      body += " & ~/" + begin + std::string(kAnyText) + "/";
    }
    return lark_.Lazy(lark_.Terminal(body));
  }

  // ---- Calls

  std::string RawInput(const CallableTool& tool) {
    return lark_.Rule("%lark {\n" + *tool.input_grammar + "\n}");
  }

  // The unquoted input of a custom tool, the last part of an answer; empty without such tools.
  std::string RawCalls(bool has_text) {
    std::vector<std::string> parts;
    for (const CallableTool* tool : raw_) {
      const std::string mark = RawInputMark(tool->name);
      const std::string head = has_text ? TextBefore(mark) : "/" + RegexOf(mark) + "/";
      parts.push_back(head + " " + RawInput(*tool));
    }
    return parts.empty() ? "" : lark_.Rule(Alternatives(parts));
  }

  // A call of any tool, between what `lead` and `tail` add.
  std::string Call(const Lead& lead, const Lead& tail) {
    ArgumentGrammar arguments(options_, raw_marks_, lark_);
    std::vector<std::string> calls;
    for (const CallableTool* tool : quoted_) {
      LarkSequence out;
      lead(out);
      arguments.Append(*tool, out);
      tail(out);
      calls.push_back(lark_.Rule(out.str()));
    }
    return lark_.Rule(Alternatives(calls));
  }

  // [call, call] behind `lead`.
  std::string List(const Lead& lead) {
    const Lead none = [](LarkSequence&) {};
    const std::string first = Call(
        [&](LarkSequence& out) {
          lead(out);
          out.Text("[");
        },
        none);
    const std::string next = Call([](LarkSequence& out) { out.Regex(", ?"); }, none);
    return lark_.Rule(first + (is_parallel_ ? " " + next + "*" : "") + " /\\]/");
  }

  // One block of calls behind `lead`, which has written the opening mark.
  std::string Block(const Lead& lead) {
    if (format_.style == CallStyle::kPythonic) return List(lead);
    if (format_.style != CallStyle::kJson) return Call(lead, Closing());
    if (!format_.closing.empty()) {
      return Call(
          [&](LarkSequence& out) {
            lead(out);
            out.Regex("\\n?");
          },
          Closing());
    }
    if (!format_.only_at_beginning) return List(lead);
    const std::string call = Call(lead, Closing());
    return is_parallel_ ? lark_.Rule(call + " | " + List(lead)) : call;
  }

  Lead Closing() {
    return [this](LarkSequence& out) {
      if (format_.closing.empty()) return;
      if (format_.style == CallStyle::kJson || format_.style == CallStyle::kXmlParameters) {
        out.Regex("\\n?");
      }
      AddMark(format_.closing, out);
    };
  }

  // A block with its opening mark, where a call must stand. `layout`: a regex before it.
  std::string MarkedBlock(std::string_view layout) {
    return Block([this, layout](LarkSequence& out) {
      out.Regex(layout);
      if (!format_.only_at_beginning) AddMark(format_.opening, out);
      AddLayout(out);
    });
  }
  // Line breaks that models write behind the opening mark.
  void AddLayout(LarkSequence& out) const {
    if (format_.style == CallStyle::kXmlParameters) out.Regex("\\n?");
  }

  // Calls alone, at least one, or the structured answer.
  std::string CallsOnly() {
    std::vector<std::string> parts = {options_.answer};
    const std::string raw = RawCalls(false);
    if (!quoted_.empty()) {
      std::string calls;
      if (format_.style == CallStyle::kHarmony) {
        calls = HarmonyThought() + " " + HarmonyCall();
      } else {
        calls = MarkedBlock("");
        if (is_parallel_ && !format_.only_at_beginning && !IsOneBlock()) {
          calls += " " + MarkedBlock("\\n?") + "*";
        }
        if (is_parallel_ && !raw.empty()) calls += " " + raw + "?";
      }
      parts.push_back(calls);
    }
    parts.push_back(raw);
    return Alternatives(parts);
  }
  // Whether one list holds all calls of an answer.
  bool IsOneBlock() const { return format_.style == CallStyle::kJson && format_.closing.empty(); }

  std::string TextAndCalls() {
    const std::string raw = RawCalls(true);
    const std::string end = raw.empty() ? "" : " " + raw + "?";
    if (quoted_.empty()) return Text() + end;
    if (format_.style == CallStyle::kHarmony) {
      return Alternatives({HarmonyMessages(), RawCalls(false)});
    }
    if (format_.only_at_beginning) {
      std::string calls = Block([](LarkSequence& out) { out.Regex(kLayout); });
      if (!format_.opening.empty() && IsToken(format_.opening)) {
        LarkSequence marked;
        marked.Token(*options_.find_mark(format_.opening).id).Part(calls);
        calls = "(" + calls + " | " + marked.str() + ")";
      }
      return Alternatives({Text() + end, calls + (is_parallel_ ? end : "")});
    }
    if (IsToken(format_.opening)) {
      const std::string block = MarkedBlock("");
      if (!is_parallel_) return Alternatives({Text() + " " + block + "?", RawCalls(true)});
      return Text() + " (" + block + " " + Text() + ")*" + end;
    }
    const std::string block =
        TextBefore(format_.opening) + " " + Block([this](LarkSequence& out) { AddLayout(out); });
    const std::string text = Text(format_.opening);
    if (!is_parallel_) return Alternatives({text, block, raw});
    return "(" + block + ")* " + text + end;
  }

  // ---- Harmony

  // <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
  std::string HarmonyCall() {
    ArgumentGrammar arguments(options_, raw_marks_, lark_);
    std::vector<std::string> calls;
    for (const CallableTool* tool : quoted_) {
      LarkSequence out, type;
      AddMark(kHarmonyChannel, out);
      out.Text("commentary to=functions." + tool->name);
      type.Text(" ");
      AddMark(kHarmonyConstrain, type);
      type.Text("json");
      out.Part("(" + type.str() + ")?");
      AddMark(kHarmonyMessage, out);
      arguments.Append(*tool, out);
      AddMark(kHarmonyCall, out);
      calls.push_back(lark_.Rule(out.str()));
    }
    return lark_.Rule(Alternatives(calls));
  }

  void AddNextMessage(LarkSequence& out) const {
    AddMark(kHarmonyEnd, out);
    AddMark(kHarmonyStart, out);
    out.Text("assistant");
  }

  std::string HarmonyThought() {
    LarkSequence out;
    AddMark(kHarmonyChannel, out);
    out.Text("analysis");
    AddMark(kHarmonyMessage, out);
    if (IsToken(kHarmonyEnd)) {
      out.Part(lark_.Terminal(TextWithout(raw_marks_)) + "?");
      AddNextMessage(out);
    } else {
      const std::string any(kAnyText);
      std::string body = "/" + any + RegexOf(kHarmonyEnd) + "/";
      for (const std::string_view mark : {kHarmonyStart, kHarmonyCall, kHarmonyReturn}) {
        body += " & ~/" + any + RegexOf(mark) + any + "/";
      }
      out.Part(lark_.Lazy(lark_.Terminal(body)));
      AddMark(kHarmonyStart, out);
      out.Text("assistant");
    }
    return lark_.Rule(out.str()) + "?";
  }

  std::string HarmonyMessages() {
    for (const std::string_view mark :
         {kHarmonyChannel, kHarmonyMessage, kHarmonyStart, kHarmonyEnd}) {
      if (IsToken(mark)) continue;
      throw Error(ErrorCode::kUnsupported, "the mark " + std::string(mark) +
                                               " is no control token of this model, so its free "
                                               "text cannot be told from calls");
    }
    LarkSequence message, next, last;
    AddMark(kHarmonyChannel, message);
    message.Regex("(analysis|commentary|final)");
    AddMark(kHarmonyMessage, message);
    message.Part(lark_.Terminal(TextWithout(raw_marks_)) + "?");
    const std::string one = lark_.Rule(message.str());
    next.Part(one);
    AddNextMessage(next);
    AddMark(kHarmonyEnd, last);
    const std::string end = last.str().empty() ? "" : " " + last.str() + "?";
    return Alternatives(
        {Text(), "(" + next.str() + ")* (" + one + end + " | " + HarmonyCall() + ")"});
  }

  const CallGrammarOptions& options_;
  const ToolFormat& format_;
  const std::vector<const CallableTool*> raw_;
  std::vector<const CallableTool*> quoted_;
  std::vector<std::string> raw_marks_;
  bool is_parallel_ = true;
  LarkText lark_;
};

}  // namespace

std::string CallGrammar(const std::vector<CallableTool>& tools, const CallGrammarOptions& options) {
  return Builder(tools, options).Build();
}

}  // namespace tandem::engine
