/* A library that has a function of the driver's name, and is not the driver. */
int cuMemAlloc_v2(void);
int cuMemAlloc_v2(void)
{
    return 4711;
}
