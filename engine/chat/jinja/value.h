#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/chat/jinja/runtime.h"
#include "engine/chat/jinja/text.h"

namespace tandem::engine {

class Value;
struct List;
struct Dict;
struct Namespace;
struct LoopState;
struct Callable;

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};
struct WideInteger {
  std::shared_ptr<const std::string> digits;
};

// A value of the template language: the Python types that templates use. Cheap to copy; everything
// except a Namespace is immutable. Integers are 64-bit and overflow is a fault. Wider integers of a
// request print and compare exactly; arithmetic on them is a fault.
class Value {
 public:
  // In the order of the variant.
  enum class Type {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,
    kDict,
    kNamespace,
    kLoop,
    kCallable,
    kWideInt
  };

  Value() : data_(None{}) {}
  static Value MakeUndefined(std::string why);
  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Int(int64_t value) { return Value(Data(value)); }
  static Value Float(double value) { return Value(Data(value)); }
  // REQUIRES: decimal digits, with '-' before them if negative, outside the range of int64_t.
  static Value WideInt(std::string digits);
  static Value Of(TextPtr text) { return Value(Data(std::move(text))); }
  static Value Of(std::shared_ptr<const List> list) { return Value(Data(std::move(list))); }
  static Value Of(std::shared_ptr<const Dict> dict) { return Value(Data(std::move(dict))); }
  static Value Of(std::shared_ptr<Namespace> ns) { return Value(Data(std::move(ns))); }
  static Value Of(std::shared_ptr<const LoopState> loop) { return Value(Data(std::move(loop))); }
  static Value Of(std::shared_ptr<const Callable> f) { return Value(Data(std::move(f))); }
  // A text that belongs to the template.
  static Value Literal(std::string text) { return Of(Text::Make(std::move(text), false)); }

  Type type() const { return static_cast<Type>(data_.index()); }
  bool is(Type type) const { return this->type() == type; }
  bool is_undefined() const { return is(Type::kUndefined); }
  bool is_none() const { return is(Type::kNone); }
  bool is_number() const { return is_integral() || is(Type::kFloat) || is(Type::kWideInt); }
  bool is_integral() const { return is(Type::kBool) || is(Type::kInt); }

  // REQUIRES: the requested type.
  bool as_bool() const { return std::get<bool>(data_); }
  double as_float() const { return std::get<double>(data_); }
  const std::string& digits() const { return *std::get<WideInteger>(data_).digits; }
  const TextPtr& text() const { return std::get<TextPtr>(data_); }
  const List& list() const { return *list_pointer(); }
  const std::shared_ptr<const List>& list_pointer() const {
    return std::get<std::shared_ptr<const List>>(data_);
  }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const std::shared_ptr<Namespace>& name_space() const {
    return std::get<std::shared_ptr<Namespace>>(data_);
  }
  const std::shared_ptr<const LoopState>& loop() const {
    return std::get<std::shared_ptr<const LoopState>>(data_);
  }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  const std::string& why_undefined() const { return *std::get<Undefined>(data_).why; }

  int64_t integral() const;  // bool or int
  double number() const;     // any number; the nearest double to an integer

  bool SameObject(const Value& other) const;  // Python's `is`

 private:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, TextPtr, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const LoopState>, std::shared_ptr<const Callable>, WideInteger>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

// kGenerator is the result of Python's lazy filters: an ordinary sequence here, but always true and
// never equal to a list.
enum class ListKind { kList, kTuple, kGenerator };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  bool from_client = false;  // its brackets and commas are the client's too
  int depth = 1;             // 1 + depth of the deepest element
};

// Insertion-ordered, with Python's keys: 1, 1.0 and true are the same key.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::map<std::string, size_t, std::less<>> index;  // canonical key -> entry
  bool from_client = false;
  int depth = 1;

  const Value* Find(std::string_view text_key) const;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

struct LoopState {
  std::shared_ptr<const List> items;
  size_t index = 0;  // of the current item
  // The previous arguments of loop.changed(); shared by the whole loop.
  std::shared_ptr<std::optional<Value>> changing;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  std::set<std::string> client_names;  // names that a client chose, through **

  // A name as a value with its origin.
  Value NameAsValue(const std::string& name) const;
};

struct Callable {
  std::string name;
  int depth = 1;  // of the captured values
  std::function<Value(Runtime&, const Arguments&)> call;
};

// Arguments in the order of `names`, null for absent ones. Faults on unknown, duplicate, surplus
// and missing arguments.
std::vector<const Value*> Bind(Runtime& rt, const Arguments& arguments, std::string_view callee,
                               std::initializer_list<const char*> names, size_t required = 0);

// Builders; they charge for the elements and refuse nesting beyond kMaxValueDepth.
Value MakeList(Runtime& rt, std::vector<Value> items, ListKind kind = ListKind::kList,
               bool from_client = false);
Value MakeCallable(Runtime& rt, std::string name, const Value& captured,
                   std::function<Value(Runtime&, const Arguments&)> call);
class DictBuilder {
 public:
  explicit DictBuilder(Runtime& rt) : rt_(rt) {}
  void Set(const Value& key, Value value);  // a later value replaces an earlier one
  Value Take(bool from_client = false);

 private:
  Runtime& rt_;
  Dict dict_;
};

int DepthOf(const Value& value);

// "str", "int", "dict" …: type names of Python's error messages.
std::string TypeName(const Value& value);

bool IsTrue(const Value& value);
bool Equal(Runtime& rt, const Value& a, const Value& b);
// a < b. Faults for types that Python does not order.
bool Less(Runtime& rt, const Value& a, const Value& b);
// `item in container`
bool Contains(Runtime& rt, const Value& container, const Value& item);
// Equal values have equal keys. Faults for lists and dicts ("unhashable").
std::string CanonicalKey(Runtime& rt, const Value& value);
const Value* FindKey(Runtime& rt, const Dict& dict, const Value& key);

// The elements that `for` would visit: characters, items or keys.
std::vector<Value> Elements(Runtime& rt, const Value& value);

// Throws the reason if `value` is undefined.
void RequireDefined(Runtime& rt, const Value& value);
int64_t RequireInt(Runtime& rt, const Value& value, std::string_view what);
const Text& RequireText(Runtime& rt, const Value& value, std::string_view what);

}  // namespace tandem::engine
