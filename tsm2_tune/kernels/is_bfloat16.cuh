#pragma once
// Which of the types of 16 bits an instruction is of.
struct bfloat16;
struct float16;
template <class T> constexpr bool is_bfloat16 = false;
template <> constexpr bool is_bfloat16<bfloat16> = true;
