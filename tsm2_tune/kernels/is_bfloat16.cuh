#pragma once
// Selects the bf16 or the f16 form of an instruction.
struct bfloat16;
struct float16;
template <class T> constexpr bool is_bfloat16 = false;
template <> constexpr bool is_bfloat16<bfloat16> = true;
