/* The choice of a winner for Python. */

#ifndef TSM2_CHOICE_H
#define TSM2_CHOICE_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

/* choose(type, (m, n, k), (ld, ld) of a, of b and of out, (conj_a, conj_b), is_gram, device): by the winner's place. */
PyObject *choose_winner(PyObject *module, PyObject *arguments);

/* How many winners there are to choose from. */
int winners_here(void);

#endif
