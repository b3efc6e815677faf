#include "engine/chat/jinja/access.h"

#include <algorithm>
#include <charconv>

namespace tandem::engine {
namespace {

Value NoAttribute(const Value& value, std::string_view name) {
  return Value::MakeUndefined("'" + TypeName(value) + " object' has no attribute '" +
                              std::string(name) + "'");
}

Value LoopItem(const LoopState& loop, size_t index, const char* why) {
  if (index >= loop.items->items.size()) return Value::MakeUndefined(why);
  return loop.items->items[index];
}

Value Cycle(Runtime& rt, const Value& loop) {
  return MakeCallable(rt, "cycle", loop, [loop](Runtime& runtime, const Arguments& arguments) {
    if (arguments.positional.empty()) runtime.Fail("loop.cycle() needs at least one argument");
    return arguments.positional[loop.loop()->index % arguments.positional.size()];
  });
}

// Whether the arguments differ from those of the previous call.
Value Changed(Runtime& rt, const Value& loop) {
  return MakeCallable(rt, "changed", loop, [loop](Runtime& runtime, const Arguments& arguments) {
    Value given = MakeList(runtime, arguments.positional, ListKind::kTuple);
    std::optional<Value>& last = *loop.loop()->changing;
    const bool changed = !last.has_value() || !Equal(runtime, *last, given);
    if (changed) last = std::move(given);
    return Value::Bool(changed);
  });
}

Value LoopAttribute(Runtime& rt, const Value& value, std::string_view name) {
  const LoopState& loop = *value.loop();
  const auto count = static_cast<int64_t>(loop.items->items.size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(count - index);
  if (name == "revindex0") return Value::Int(count - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == count);
  if (name == "length") return Value::Int(count);
  // Jinja's depth counts recursive loops only.
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    // For the first item the index wraps to an absent one.
    return LoopItem(loop, loop.index - 1, "there is no previous item");
  }
  if (name == "nextitem") return LoopItem(loop, loop.index + 1, "there is no next item");
  if (name == "cycle") return Cycle(rt, value);
  if (name == "changed") return Changed(rt, value);
  return NoAttribute(value, name);
}

// The byte range of one code point, counted from the front or, if negative, from the end.
std::optional<std::pair<size_t, size_t>> CodePointAt(Runtime& rt, const Text& text, int64_t index) {
  rt.Work(text.size());
  if (index < 0) index += static_cast<int64_t>(CountCodePoints(text.bytes()));
  if (index < 0) return std::nullopt;
  size_t at = 0;
  for (; at < text.size() && index > 0; --index) at += ReadCodePoint(text.bytes(), at).bytes;
  if (at >= text.size()) return std::nullopt;
  return std::make_pair(at, at + ReadCodePoint(text.bytes(), at).bytes);
}

// Python's slice.indices(length).
struct SliceRange {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t count;
};

int64_t SliceBound(Runtime& rt, const Value& bound, int64_t fallback, int64_t length, int64_t low,
                   int64_t high) {
  if (bound.is_none()) return fallback;
  RequireDefined(rt, bound);
  int64_t value = RequireInt(rt, bound, "a slice index");
  if (value < 0) value = value < -length ? low : value + length;
  return std::clamp(value, low, high);
}

SliceRange ResolveSlice(Runtime& rt, int64_t length, const Value& start, const Value& stop,
                        const Value& step) {
  SliceRange range{};
  range.step = step.is_none() ? 1 : RequireInt(rt, step, "a slice step");
  if (range.step == 0) rt.Fail("slice step cannot be zero");
  // A larger step also yields one element.
  range.step = std::clamp<int64_t>(range.step, -length - 1, length + 1);
  if (range.step > 0) {
    range.start = SliceBound(rt, start, 0, length, 0, length);
    range.stop = SliceBound(rt, stop, length, length, 0, length);
    range.count = std::max<int64_t>(0, (range.stop - range.start + range.step - 1) / range.step);
  } else {
    range.start = SliceBound(rt, start, length - 1, length, -1, length - 1);
    range.stop = SliceBound(rt, stop, -1, length, -1, length - 1);
    range.count = std::max<int64_t>(0, (range.start - range.stop - range.step - 1) / -range.step);
  }
  return range;
}

Value SliceText(Runtime& rt, const TextPtr& text, const Value& start, const Value& stop,
                const Value& step) {
  rt.Work(text->size() * sizeof(uint32_t));
  std::vector<uint32_t> offsets;  // of each code point, and of the end
  for (size_t i = 0; i < text->size(); i += ReadCodePoint(text->bytes(), i).bytes) {
    offsets.push_back(static_cast<uint32_t>(i));
  }
  const auto length = static_cast<int64_t>(offsets.size());
  offsets.push_back(static_cast<uint32_t>(text->size()));

  const SliceRange range = ResolveSlice(rt, length, start, stop, step);
  if (range.step == 1) {
    const int64_t end = range.start + range.count;
    return Value::Of(Substring(rt, text, offsets[static_cast<size_t>(range.start)],
                               offsets[static_cast<size_t>(end)]));
  }
  TextBuilder out(rt);
  for (int64_t i = 0; i < range.count; ++i) {
    const auto at = static_cast<size_t>(range.start + i * range.step);
    out.Append(*text, offsets[at], offsets[at + 1]);
  }
  return Value::Of(out.Take());
}

}  // namespace

Value GetAttribute(Runtime& rt, const Value& value, std::string_view name) {
  RequireDefined(rt, value);
  switch (value.type()) {
    case Value::Type::kText:
    case Value::Type::kList:
    case Value::Type::kDict:
      if (std::optional<Value> method = FindMethod(rt, value, name)) return *std::move(method);
      if (value.is(Value::Type::kDict)) {
        if (const Value* item = value.dict().Find(name)) return *item;
      }
      return NoAttribute(value, name);
    case Value::Type::kNamespace: {
      const auto it = value.name_space()->attributes.find(name);
      return it == value.name_space()->attributes.end() ? NoAttribute(value, name) : it->second;
    }
    case Value::Type::kLoop:
      return LoopAttribute(rt, value, name);
    default:
      return NoAttribute(value, name);
  }
}

Value GetItem(Runtime& rt, const Value& value, const Value& key) {
  RequireDefined(rt, value);
  const bool hashable = !key.is(Value::Type::kList) && !key.is(Value::Type::kDict);
  if (value.is(Value::Type::kDict) && hashable) {
    if (const Value* item = FindKey(rt, value.dict(), key)) return *item;
  }
  if (key.is(Value::Type::kText)) return GetAttribute(rt, value, key.text()->bytes());
  if (key.is_integral() && value.is(Value::Type::kList)) {
    const std::vector<Value>& items = value.list().items;
    int64_t index = key.integral();
    if (index < 0) index += static_cast<int64_t>(items.size());
    if (index >= 0 && index < static_cast<int64_t>(items.size())) {
      return items[static_cast<size_t>(index)];
    }
  }
  if (key.is_integral() && value.is(Value::Type::kText)) {
    if (const auto range = CodePointAt(rt, *value.text(), key.integral())) {
      return Value::Of(Substring(rt, value.text(), range->first, range->second));
    }
  }
  if (key.is_integral()) return NoAttribute(value, std::to_string(key.integral()));
  return NoAttribute(value, "(" + TypeName(key) + ")");
}

Value GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
               const Value& step) {
  RequireDefined(rt, value);
  if (value.is(Value::Type::kText)) return SliceText(rt, value.text(), start, stop, step);
  if (!value.is(Value::Type::kList)) rt.Fail("'" + TypeName(value) + "' cannot be sliced");
  const List& list = value.list();
  const SliceRange range =
      ResolveSlice(rt, static_cast<int64_t>(list.items.size()), start, stop, step);
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(range.count));
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(list.items[static_cast<size_t>(range.start + i * range.step)]);
  }
  const ListKind kind = list.kind == ListKind::kTuple ? ListKind::kTuple : ListKind::kList;
  return MakeList(rt, std::move(items), kind, list.from_client);
}

Value GetPath(Runtime& rt, const Value& value, const Value& path) {
  if (path.is_integral()) return GetItem(rt, value, path);
  const std::string_view names = RequireText(rt, path, "an attribute").bytes();
  Value found = value;
  for (size_t begin = 0; begin <= names.size();) {
    rt.Step();
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string_view name = names.substr(begin, end - begin);
    int64_t index = 0;
    const auto number = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = !name.empty() && name[0] != '-' && number.ec == std::errc() &&
                          number.ptr == name.data() + name.size();
    found = GetItem(rt, found, is_index ? Value::Int(index) : Value::Literal(std::string(name)));
    begin = end + 1;
  }
  return found;
}

}  // namespace tandem::engine
