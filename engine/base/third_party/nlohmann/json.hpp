// Replaces the member of the JSON library that destroys a value. This file precedes the library on
// the include path, so every file that includes <nlohmann/json.hpp> gets both.
#pragma once
#pragma GCC system_header

#include_next <nlohmann/json.hpp>

static_assert(NLOHMANN_JSON_VERSION_MAJOR == 3 && NLOHMANN_JSON_VERSION_MINOR == 11,
              "destroy() below uses private members of version 3.11: compare it with yours");

namespace tandem {

// The library moves all elements into a new vector to destroy them without recursion. When that
// allocation fails inside a destructor, the process ends. This version neither allocates nor
// recurses. It descends to the last element of each container, whose place stores the link to the
// enclosing container (Schorr and Waite 1967). `type_of` and `value_of` give access to the private
// members of an element.
template <class Json, class Value, class TypeOf, class ValueOf>
void DestroyJson(typename Json::value_t type, Value value, TypeOf type_of, ValueOf value_of) {
  using Type = typename Json::value_t;
  const auto is_container = [](Type t, const Value& v) {
    return (t == Type::array && v.array != nullptr) || (t == Type::object && v.object != nullptr);
  };
  // Null when the container is empty.
  const auto last_of = [](Type t, const Value& container) -> Json* {
    if (t == Type::array) {
      return container.array->empty() ? nullptr : &container.array->back();
    }
    return container.object->empty() ? nullptr : &std::prev(container.object->end())->second;
  };
  const auto pop_last = [](Type t, const Value& container) {
    if (t == Type::array) {
      container.array->pop_back();
    } else if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      container.object->pop_back();
    } else {
      container.object->erase(std::prev(container.object->end()));
    }
  };
  const auto release = [](auto* memory) {
    if (memory == nullptr) return;
    std::allocator<std::remove_pointer_t<decltype(memory)>> allocator;  // the library's default
    std::allocator_traits<decltype(allocator)>::destroy(allocator, memory);
    std::allocator_traits<decltype(allocator)>::deallocate(allocator, memory, 1);
  };

  Type around_type = Type::null;  // null: `value` is the outermost
  Value around{};
  for (;;) {
    if (is_container(type, value)) {
      if (Json* last = last_of(type, value)) {
        if (is_container(type_of(*last), value_of(*last))) {
          const Type inner_type = std::exchange(type_of(*last), around_type);
          const Value inner = std::exchange(value_of(*last), around);
          around_type = std::exchange(type, inner_type);
          around = std::exchange(value, inner);
        } else {
          pop_last(type, value);
        }
        continue;
      }
    }
    switch (type) {
      case Type::object:
        release(value.object);
        break;
      case Type::array:
        release(value.array);
        break;
      case Type::string:
        release(value.string);
        break;
      case Type::binary:
        release(value.binary);
        break;
      default:
        break;
    }
    if (around_type == Type::null) return;
    type = around_type;
    value = around;
    Json* link = last_of(type, value);
    around_type = std::exchange(type_of(*link), Type::null);
    around = std::exchange(value_of(*link), Value{});
    pop_last(type, value);
  }
}

}  // namespace tandem

template <>
inline void nlohmann::basic_json<nlohmann::ordered_map>::json_value::destroy(value_t t) {
  tandem::DestroyJson<basic_json>(
      t, *this, [](basic_json& json) -> value_t& { return json.m_type; },
      [](basic_json& json) -> json_value& { return json.m_value; });
}

template <>
inline void nlohmann::basic_json<>::json_value::destroy(value_t t) {
  tandem::DestroyJson<basic_json>(
      t, *this, [](basic_json& json) -> value_t& { return json.m_type; },
      [](basic_json& json) -> json_value& { return json.m_value; });
}
