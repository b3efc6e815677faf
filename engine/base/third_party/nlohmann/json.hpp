// Replaces the member of the JSON library that destroys a value. This file precedes the library on
// the include path, so every file that includes <nlohmann/json.hpp> gets both.
#pragma once
#pragma GCC system_header

#include_next <nlohmann/json.hpp>

static_assert(NLOHMANN_JSON_VERSION_MAJOR == 3 && NLOHMANN_JSON_VERSION_MINOR == 11,
              "destroy() below uses private members of version 3.11: compare it with yours");

// The library moves all elements into a new vector to destroy them without recursion. When that
// allocation fails inside a destructor, the process ends. This version neither allocates nor
// recurses. It descends to the last element of each container, whose place stores the link to the
// enclosing container (Schorr and Waite 1967).
template <>
inline void nlohmann::basic_json<nlohmann::ordered_map>::json_value::destroy(value_t t) {
  const auto is_container = [](value_t type, const json_value& value) {
    return (type == value_t::array && value.array != nullptr) ||
           (type == value_t::object && value.object != nullptr);
  };
  // Null when the container is empty.
  const auto last_of = [](value_t type, const json_value& container) -> basic_json* {
    if (type == value_t::array) {
      return container.array->empty() ? nullptr : &container.array->back();
    }
    return container.object->empty() ? nullptr : &container.object->back().second;
  };
  const auto pop_last = [](value_t type, const json_value& container) {
    type == value_t::array ? container.array->pop_back() : container.object->pop_back();
  };
  const auto release = [](auto* memory) {
    if (memory == nullptr) return;
    std::allocator<std::remove_pointer_t<decltype(memory)>> allocator;  // the library's default
    std::allocator_traits<decltype(allocator)>::destroy(allocator, memory);
    std::allocator_traits<decltype(allocator)>::deallocate(allocator, memory, 1);
  };

  value_t type = t;
  json_value value = *this;
  value_t around_type = value_t::null;  // null: `value` is the outermost
  json_value around{};
  for (;;) {
    if (is_container(type, value)) {
      if (basic_json* last = last_of(type, value)) {
        if (is_container(last->m_type, last->m_value)) {
          const value_t inner_type = std::exchange(last->m_type, around_type);
          const json_value inner = std::exchange(last->m_value, around);
          around_type = std::exchange(type, inner_type);
          around = std::exchange(value, inner);
        } else {
          pop_last(type, value);
        }
        continue;
      }
    }
    switch (type) {
      case value_t::object:
        release(value.object);
        break;
      case value_t::array:
        release(value.array);
        break;
      case value_t::string:
        release(value.string);
        break;
      case value_t::binary:
        release(value.binary);
        break;
      default:
        break;
    }
    if (around_type == value_t::null) return;
    type = around_type;
    value = around;
    basic_json* link = last_of(type, value);
    around_type = std::exchange(link->m_type, value_t::null);
    around = std::exchange(link->m_value, json_value{});
    pop_last(type, value);
  }
}
